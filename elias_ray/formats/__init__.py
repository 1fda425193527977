"""The formats people have their data in; each module reads one."""

import posixpath
from types import ModuleType

from elias_ray.artifacts import Folder
from elias_ray.config import Config
from elias_ray.errors import UserError
from elias_ray.formats import fasttext, lightxml, pecos_npz, tables, text2text, xc_json, xc_sparse
from elias_ray.formats.data_folder import DataFolder
from elias_ray.formats.source import Source

# In this order: the first that recognises its files reads them.
FORMATS: tuple[ModuleType, ...] = (xc_json, xc_sparse, pecos_npz, lightxml, tables, text2text, fasttext)


def locate(path: str | Folder) -> tuple[Folder, str | None]:
    """The folder of the data, and the file in it if `path` is one."""
    folder = path if isinstance(path, Folder) else Folder.at(path)
    info = folder.filesystem.get_file_info(folder.path)
    if info.is_file:
        return Folder(folder.filesystem, posixpath.dirname(folder.path)), info.base_name
    return folder, None


def open_data(path: str | Folder, config: Config, scratch: Folder) -> tuple[Source, DataFolder]:
    """Recognise the format of a file or folder, look its files over and list its chunks."""
    folder, only = locate(path)
    if not folder.exists():
        raise UserError(f"data.path={config.data.path}: no such file or folder")
    data = DataFolder(folder, scratch, config.data.rows_per_shard, config.data.homonyms, only)
    for module in FORMATS:
        if module.matches(data):
            source: Source = module.read(data, config)
            if config.features.given and source.num_features is None:
                raise UserError(f"features.given=true: {source.format} brings no features; use features.given=false")
            return source, data
    looked_for = "\n".join(f"  {module.NAME}: {module.LOOKED_FOR}" for module in FORMATS)
    found = ", ".join(data.names[:8]) + (" ..." if len(data.names) > 8 else "") if data.names else "nothing"
    raise UserError(f"{config.data.path}: no known format; found {found}; looked for\n{looked_for}")
