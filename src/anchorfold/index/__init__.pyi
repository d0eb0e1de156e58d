from .hits import Hit as Hit
from .index import Index as Index
from .progress import AddReport as AddReport
from .progress import Progress as Progress
from .store.info import IndexInfo as IndexInfo
from .store.settings import IndexSettings as IndexSettings
