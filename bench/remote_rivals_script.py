# SPDX-License-Identifier: Apache-2.0
"""Reads a dataset from the server of bench_remote_rivals.py, with one of the libraries that it compares.

`remote_rivals_script.py RIVAL FOLDER` gets the place of the data as JSON in the first line of stdin. It prints a line
when the dataset is open, and then a line of JSON for each further line of stdin, which is one epoch.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch.utils.data

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "python" / "lib"))

WORKERS, BATCH, THREADS = 2, 64, 16
NUMBER_BYTES = 8  # with which each sample begins: its index


_making = threading.Lock()


class Ranges(torch.utils.data.Dataset[bytes]):
    """Reads ranges of tar files, whose places are known, from files that each worker opens once."""

    def __init__(self, given: dict[str, Any], open_file: Callable[[str], Any]) -> None:
        self._places, self._urls, self._open = given["places"], given["tars"], open_file
        self._files: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> bytes:
        number, at, size = self._places[index]
        if number not in self._files:
            self._files[number] = self._open(self._urls[number])
        self._files[number].seek(at)
        data: bytes = self._files[number].read(size)
        return data


class ByBoto(torch.utils.data.Dataset[bytes]):
    """Reads an object by boto3. Each process has a client of its own."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._boto3: Any = importlib.import_module("boto3")
        self._config: Any = importlib.import_module("botocore.config").Config(
            max_pool_connections=THREADS, s3={"addressing_style": "path"}
        )
        self._given, self._client, self._pid = given, None, 0

    def __len__(self) -> int:
        return len(self._given["keys"])

    def _of_process(self) -> Any:
        with _making:  # threads of one process share the client
            if self._pid != os.getpid():
                self._client = self._boto3.client("s3", config=self._config, **self._given["s3"])
                self._pid = os.getpid()
        return self._client

    def __getitem__(self, index: int) -> bytes:
        found = self._of_process().get_object(Bucket=self._given["bucket"], Key=self._given["keys"][index])
        data: bytes = found["Body"].read()
        return data


class ByWebshart(torch.utils.data.Dataset[bytes]):
    """Reads samples by webshart. Each process discovers the dataset, because its threads do not survive a fork."""

    def __init__(self, given: dict[str, Any], folder: str, keeps: bool) -> None:
        self._webshart: Any = importlib.import_module("webshart")
        self._given, self._folder, self._keeps = given, folder, keeps
        self._loader: Any = None

    def __len__(self) -> int:
        return len(self._given["places"])

    def __getitem__(self, index: int) -> bytes:
        if self._loader is None:
            dataset = self._webshart.discover_dataset(self._given["repo"])
            dataset.enable_metadata_cache(f"{self._folder}/metadata")
            if self._keeps:
                dataset.enable_shard_cache(f"{self._folder}/shards")
            self._loader = self._webshart.TarDataLoader(dataset)
        number = self._given["places"][index][0]
        return bytes(self._loader.load_sample(number, index - self._given["firsts"][number]).data)


def by_torch(dataset: Any) -> Iterator[bytes]:
    shuffle = not isinstance(dataset, torch.utils.data.IterableDataset)
    for batch in torch.utils.data.DataLoader(dataset, BATCH, shuffle=shuffle, num_workers=WORKERS, collate_fn=list):
        yield from batch


def by_headrace(dataset: Any, **options: Any) -> Iterator[bytes]:
    headrace: Any = importlib.import_module("headrace.torch")
    loader = headrace.DataLoader(dataset, BATCH, shuffle=True, num_workers=WORKERS, collate_fn=list, **options)
    for batch in loader:
        yield from batch


# ---- the libraries: a function of the place of the data and a folder, which returns one that reads an epoch ----

Epoch = Callable[[], Iterator[bytes]]


def headrace_tar(given: dict[str, Any], folder: str) -> Epoch:
    from headrace import sources

    os.environ["HEADRACE_REMOTE"] = folder
    dataset = sources.Tar(given["tars"], fields=("jpg",), decode=None, keep="job")
    return lambda: (sample[0] if isinstance(sample, (tuple, list)) else sample for sample in by_headrace(dataset))


def headrace_objects(given: dict[str, Any], folder: str) -> Epoch:
    from headrace import sources

    os.environ["HEADRACE_REMOTE"] = folder
    storage = {"endpoint": given["s3"]["endpoint_url"], "allow_http": True, "anonymous": True}
    dataset = sources.Objects(f"s3://{given['bucket']}/objects/", storage=storage)
    return lambda: by_headrace(dataset)


def _webdataset(given: dict[str, Any], **options: Any) -> Epoch:
    webdataset: Any = importlib.import_module("webdataset")
    urls = [f"pipe:curl -s -L {url}" for url in given["tars"]]
    dataset = webdataset.WebDataset(urls, shardshuffle=len(urls), **options).map(lambda sample: sample["jpg"])
    return lambda: by_torch(dataset)


def webdataset_pipe(given: dict[str, Any], folder: str) -> Epoch:
    return _webdataset(given)


def webdataset_cache(given: dict[str, Any], folder: str) -> Epoch:
    os.makedirs(folder, exist_ok=True)
    return _webdataset(given, cache_dir=folder)


def litdata_raw(given: dict[str, Any], folder: str) -> Epoch:
    downloader: Any = importlib.import_module("litdata.streaming.downloader")
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # for which litdata has no setting
    raw: Any = importlib.import_module("litdata.raw.dataset")
    indexer: Any = importlib.import_module("litdata.raw.indexer")

    class Listed(indexer.BaseIndexer):  # type: ignore[misc]
        """Gives the objects. litdata's own indexer lists them by s3fs, which is not installed."""

        def discover_files(self, *_: Any) -> Any:
            return self.build_or_load_index()

        def build_or_load_index(self, *_: Any) -> Any:
            begin = f"s3://{given['bucket']}/"
            return [indexer.FileMetadata(begin + key, given["size"]) for key in given["keys"]]

    dataset = raw.StreamingRawDataset(
        f"s3://{given['bucket']}/objects", folder, Listed(), given["s3"], cache_files=True
    )
    return lambda: by_torch(dataset)


def _webshart(given: dict[str, Any], folder: str, keeps: bool) -> Epoch:
    for name in ("HTTPS_PROXY", "https_proxy"):
        os.environ[name] = given["proxy"]
    os.environ["SSL_CERT_FILE"] = given["certificate"]
    dataset = ByWebshart(given, folder, keeps)
    return lambda: by_torch(dataset)


def webshart_ranges(given: dict[str, Any], folder: str) -> Epoch:
    return _webshart(given, folder, keeps=False)


def webshart_cache(given: dict[str, Any], folder: str) -> Epoch:
    return _webshart(given, folder, keeps=True)


def _fsspec(given: dict[str, Any], folder: str, kind: str) -> Epoch:
    fsspec: Any = importlib.import_module("fsspec")
    for name in ("fsspec.implementations.http", "fsspec.implementations.cached"):
        importlib.import_module(name)

    def open_file(url: str) -> Any:
        return fsspec.open(f"{kind}::{url}", "rb", **{kind: {"cache_storage": folder}}).open()

    dataset = Ranges(given, open_file)
    return lambda: by_torch(dataset)


def fsspec_filecache(given: dict[str, Any], folder: str) -> Epoch:
    return _fsspec(given, folder, "filecache")


def fsspec_blockcache(given: dict[str, Any], folder: str) -> Epoch:
    return _fsspec(given, folder, "blockcache")


def boto3_torch(given: dict[str, Any], folder: str) -> Epoch:
    dataset = ByBoto(given)
    return lambda: by_torch(dataset)


def boto3_threads(given: dict[str, Any], folder: str) -> Epoch:
    dataset = ByBoto(given)
    return lambda: by_headrace(dataset, sample_threads=THREADS)


# ---- an epoch ----


def cpu_s() -> float:
    """Returns the CPU time of this process and its ended children, and of the fetcher."""
    from remote_runs import fetchers_of

    found = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    folder = os.environ.get("HEADRACE_REMOTE")
    for pid in fetchers_of(Path(folder)) if folder else ():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        found += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def judge(samples: Iterator[bytes], given: dict[str, Any], found: Counter[str]) -> None:
    """Counts samples that have the bytes of the first contents ("right"), of those that replaced them ("newer"), and
    others ("wrong")."""
    seen: set[int] = set()
    for sample in samples:
        index = int.from_bytes(sample[:NUMBER_BYTES], "little")
        kinds = ["right"] if not given["sums"] and len(sample) == given["size"] and index < given["count"] else []
        if given["sums"] and index < given["count"] and index not in seen:
            kinds = [kind for kind, sums in given["sums"].items() if sums[index] == zlib.crc32(sample)]
        seen.add(index)
        found[kinds[0] if kinds else "wrong"] += 1


def main() -> None:
    name, folder = sys.argv[1:]
    given = json.loads(sys.stdin.readline())
    torch.set_num_threads(1)
    epoch: Epoch = globals()[name](given, folder)
    print("open", flush=True)
    for number, _ in enumerate(sys.stdin):
        torch.manual_seed(number)
        found: Counter[str] = Counter()
        error = ""
        begin, cpu = time.perf_counter(), cpu_s()
        try:
            judge(epoch(), given, found)
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        passed = time.perf_counter() - begin
        print(json.dumps({"seconds": passed, "cpu_s": cpu_s() - cpu, "error": error, **found}), flush=True)


if __name__ == "__main__":
    main()
