"""Commands that read attention warn once if the model is causal."""

import json
import warnings

import pytest
from typer.testing import CliRunner

import anchorfold
from anchorfold.cli.app import app, load_commands
from anchorfold.testing import tiny
from tests.backbones.test_multivector import encoder_for
from tests.number_reader import page_image, write_pdf

load_commands()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    write_pdf(folder / "pdfs/a.pdf", [0, 100, 200])
    lines = [{"id": f"q{i}", "text": f"words number {i}", "relevant": [["a.pdf", i % 3]]} for i in range(9)]
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder


@pytest.fixture(scope="module")
def causal(tmp_path_factory):
    """A causal checkpoint whose random pages score above zero, which a calibration needs."""
    for seed in range(20):
        folder = tiny.make("colqwen2", tmp_path_factory.mktemp("causal"), seed)
        model = anchorfold.load(folder, device="cpu")
        if anchorfold.maxsim(model.encode_queries(["words number 1"]), model.encode_documents([page_image(100)])) > 0.1:
            return folder
    raise AssertionError("none of these seeds")


def causal_warnings(run):
    """The warnings of that kind that a run gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        run()
    texts = [str(w.message) for w in caught]
    return [text for text in texts if "is causal: its visual tokens cannot attend to later ones" in text]


COMMANDS = {
    "eval": ("eval", "CORPUS", "--methods", "anchorfold,sap", "--ratios", "0.5", "-o", "OUT"),
    "calibrate": ("calibrate", "MODEL", "--pairs", "CORPUS", "--count", "9", "--force"),
    "ablate": ("ablate", "variants", "CORPUS", "-o", "OUT"),
    "index": ("index", "CORPUS/pdfs", "-o", "OUT/my.index", "--method", "anchorfold"),
}
BENCH = (
    "bench",
    "efficiency",
    "--corpus",
    "CORPUS",
    "--methods",
    "sap",
    "--pages",
    "1",
    "--warm-up",
    "0",
    "--passes",
    "1",
    "-o",
    "OUT",
)


@pytest.mark.parametrize(
    "command", [*COMMANDS.values(), pytest.param(BENCH, marks=pytest.mark.slow)], ids=[*COMMANDS, "bench"]
)
def test_commands(command, corpus, causal, tmp_path):
    model = str(causal)
    words = [w.replace("CORPUS", str(corpus)).replace("OUT", str(tmp_path)).replace("MODEL", model) for w in command]
    words += [] if "MODEL" in command else ["--model", model]

    def run():
        completed = CliRunner().invoke(app, words, catch_exceptions=False)
        assert completed.exit_code == 0, completed.output

    assert len(causal_warnings(run)) == 1


def test_index_states_the_default_method_instead(corpus, causal, tmp_path):
    def run():
        words = ["index", str(corpus / "pdfs"), "-o", str(tmp_path / "my.index"), "--model", str(causal)]
        assert "focus-clustering mirrored-symmetric" in CliRunner().invoke(app, words, catch_exceptions=False).output

    assert causal_warnings(run) == []


def test_attach(checkpoints, images):
    encoder = encoder_for(checkpoints["colqwen2"])

    def run():
        anchorfold.attach(encoder, anchorfold.AnchorFold(ratio=0.5))
        for _ in range(2):
            encoder.encode_document(images[:1])

    assert len(causal_warnings(run)) == 1


def test_no_warning_for_bidirectional_models(checkpoints, images):
    model = anchorfold.load(checkpoints["colqwen2.5"])
    assert causal_warnings(lambda: model.encode_documents(images[:1], anchorfold.AnchorFold(ratio=0.5))) == []
