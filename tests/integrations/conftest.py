import pytest

from anchorfold import Index


@pytest.fixture(scope="session")
def report_index(report_folder):
    return Index.open(report_folder / "my.index")
