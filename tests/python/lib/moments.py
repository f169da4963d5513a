# SPDX-License-Identifier: Apache-2.0
"""Draws small programs in which a loader is used, and in which one thing changes at one moment.

A program is text: it can be run with either loader, and a failure prints it. Its cell is a change, a moment and a
number of workers; the rest is drawn around it, so that both exist.
"""

from __future__ import annotations

# ruff: noqa: E501 (the texts of programs)
import itertools
import random
import textwrap
from collections.abc import Iterator
from typing import NamedTuple

# ---- what a program is made of ----


class Part(NamedTuple):
    """A piece of a program: its lines, and the kinds of changes that fit it."""

    text: str
    takes: frozenset[str]
    batches: str = "any"  # "none": batch_size is None; "own": it makes the batches; "some": batch_size is a number


class Change(NamedTuple):
    """A change of a thing. `of`: the kind of part that has it. process: it changes more than the program's objects, so
    the program needs a process of its own."""

    of: str
    text: str
    process: bool = False


def _part(text: str, *takes: str, batches: str = "any") -> Part:
    return Part(textwrap.dedent(text).strip(), frozenset(takes), batches)


ITEMS = """
class Items(Dataset):
    def __init__(self, items):
        self.items = items
    def __len__(self):
        return len(self.items)
    def __getitem__(self, index):
        at("sample")
        seen.append(index)
        return self.items[index]
"""
BATCHED = """
class Batched(Items):
    def __getitems__(self, indices):
        at("sample")
        seen.append(list(indices))
        return [self.items[index] for index in indices]
"""
DATASETS = {
    "tensors": _part("data = TensorDataset(torch.arange(24).reshape(8, 3))", "tensors", "class"),
    "pairs": _part("data = TensorDataset(torch.arange(8.0), torch.arange(16).reshape(8, 2))", "tensors", "class"),
    "channels last": _part(
        "data = TensorDataset(torch.arange(2 * 7 * 3 * 4 * 5.0).reshape(7, 2, 4, 5, 3).permute(0, 1, 4, 2, 3))",
        "tensors", "class",
    ),
    "columns": _part("data = TensorDataset(torch.arange(24).reshape(3, 8).t())", "tensors", "class"),
    "subset": _part(
        "data = Subset(TensorDataset(torch.arange(24).reshape(12, 2)), [7, 1, 5, 3, 0, 9, 2, 11])", "subset", "class"
    ),
    "subset of array": _part(
        "data = Subset(TensorDataset(torch.arange(24).reshape(12, 2)), np.array([7, 1, 5, 3, 0, 9]))", "array", "class"
    ),
    "concat": _part(
        "data = ConcatDataset([TensorDataset(torch.arange(5)), TensorDataset(torch.arange(10, 14))])", "concat", "class"
    ),
    "subset of concat": _part(
        """
        whole = ConcatDataset([TensorDataset(torch.arange(5)), Subset(TensorDataset(torch.arange(10, 20)), [7, 2, 4])])
        data = Subset(whole, [7, 1, 5, 3, 0, 6, 2])
        """,
        "subset", "inner concat", "class",
    ),
    "mixed": _part(
        "data = ConcatDataset([TensorDataset(torch.arange(5)), [(torch.tensor(8),), (torch.tensor(9),)]])", "concat"
    ),
    "list": _part("data = [10 * i for i in range(8)]", "list"),
    "list of dicts": _part('data = [{"x": float(i), "y": torch.full((2,), i), "z": "a" * i} for i in range(7)]', "list"),
    "list of arrays": _part("data = [np.full(3, i) for i in range(7)]", "list"),
    "items": _part(ITEMS + "data = Items([10 * i for i in range(8)])", "items", "sample"),
    "tensor items": _part(ITEMS + "data = Items([torch.full((2,), i) for i in range(8)])", "items", "sample"),
    "nested items": _part(ITEMS + "data = Items([(i, {'y': [float(i), torch.tensor(i)]}) for i in range(7)])", "items",
                          "sample"),
    "batched": _part(ITEMS + BATCHED + "data = Batched([10 * i for i in range(8)])", "items", "batched", "sample"),
}  # fmt: skip
STREAM = """
class Stream(IterableDataset):
    def __init__(self, items):
        self.items = items
    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for item in self.items[first::step]:
            at("sample")
            yield item
"""
STREAMS = {
    "stream": _part(STREAM + "data = Stream([10 * i for i in range(9)])", "stream", "sample"),
    "stream of tensors": _part(STREAM + "data = Stream([torch.full((2,), i) for i in range(9)])", "stream", "sample"),
}
OWN = """
class Own(Sampler):
    def __init__(self, order):
        self.order = order
    def __iter__(self):
        for index in self.order:
            at("sampler")
            yield index
    def __len__(self):
        return len(self.order)
"""
SAMPLERS = {
    "sequential": _part("sampler = SequentialSampler(data)", "data_source"),
    "random": _part("sampler = RandomSampler(data)", "data_source", "random"),
    "seeded": _part(
        "sampler = RandomSampler(data, generator=torch.Generator().manual_seed(4))", "data_source", "random", "seeded"
    ),
    "replacement": _part(
        "sampler = RandomSampler(data, replacement=True, num_samples=70)", "data_source", "random", "num_samples"
    ),
    "few": _part("sampler = RandomSampler(data, num_samples=19)", "data_source", "random", "num_samples"),
    "subset random": _part(
        "sampler = SubsetRandomSampler([5, 1, 3, 0, 2, 4], torch.Generator().manual_seed(4))", "indices", "seeded"
    ),
    "weighted": _part("sampler = WeightedRandomSampler([1.0, 3.0, 0.5, 2.0, 1.0], 11)", "weights"),
    "distributed": _part("sampler = DistributedSampler(data, num_replicas=2, rank=0)", "distributed"),
    "dealt in order": _part(
        "sampler = DistributedSampler(data, num_replicas=2, rank=1, shuffle=False, drop_last=True)", "distributed"
    ),
    "own": _part(OWN + "sampler = Own([4, 1, 0, 3, 2, 5])", "own", "sampler"),
    "list": _part("sampler = [4, 1, 0, 3, 2, 5]", "list sampler"),
    "own batches": _part(
        OWN + "batches = Own([[4, 1], [0], [3, 2, 5], [1, 1]])", "own batches", "sampler", batches="own"
    ),
    "batches": _part(
        "sampler = RandomSampler(data)\nbatches = BatchSampler(sampler, 3, False)", "data_source", "random", "batches",
        batches="own",
    ),
}  # fmt: skip
DEFAULT = _part("collate = None", "default")
COLLATES = {
    "default": DEFAULT,
    "function": _part(
        """
        def collate(samples):
            at("collate")
            return default_collate(samples)
        """,
        "collate", "default",
    ),
    "list": _part(
        """
        def collate(samples):
            at("collate")
            return list(samples) if isinstance(samples, list) else samples
        """,
        "collate",
    ),
}  # fmt: skip

# ---- what changes ----

_MAPS = "collate_module.default_collate_fn_map"
CHANGES = {
    # a TensorDataset
    "grow": Change("tensors", "data.tensors = tuple(torch.cat([one, one[:3] + 100]) for one in data.tensors)"),
    "shrink": Change("tensors", "data.tensors = tuple(one[:4] for one in data.tensors)"),
    "edit": Change("tensors", "data.tensors[0][2:5] += 50"),
    "replace by equal": Change("tensors", "data.tensors = tuple(one.clone() for one in data.tensors)"),
    "lay out otherwise": Change("tensors", "data.tensors = tuple(one.t().contiguous().t() if one.ndim == 2 else one for one in data.tensors)"),
    "every second": Change("tensors", "data.tensors = tuple(torch.cat([one, one])[::2] for one in data.tensors)"),
    "other dtype": Change("tensors", "data.tensors = tuple(one.to(torch.int16) for one in data.tensors)"),
    "float16": Change("tensors", "data.tensors = tuple(one.half() for one in data.tensors)"),
    "tensors are a list": Change("tensors", "data.tensors = list(data.tensors)"),
    "one more tensor": Change("tensors", "data.tensors = (*data.tensors, torch.arange(100, 120))"),
    "a tensor of a subclass": Change("tensors", "data.tensors = tuple(one.as_subclass(Tagged) for one in data.tensors)"),
    "an array": Change("tensors", "data.tensors = (data.tensors[0].numpy(), *data.tensors[1:])"),
    "a list in place of a tensor": Change("tensors", "data.tensors = (data.tensors[0].tolist(), *data.tensors[1:])"),
    "a parameter": Change("tensors", "data.tensors = (torch.nn.Parameter(data.tensors[0].float()), *data.tensors[1:])"),
    "complex": Change("tensors", "data.tensors = tuple(one.to(torch.complex64).conj() for one in data.tensors)"),
    "sparse": Change("tensors", "data.tensors = (data.tensors[0].to_sparse(), *data.tensors[1:])"),
    "no tensors": Change("tensors", "del data.tensors"),
    "resize in place": Change("tensors", "data.tensors[0].set_(data.tensors[0][:6].clone())"),
    "items of the instance": Change("tensors", "data.__getitems__ = lambda indices: [-index for index in indices]"),
    "item of the instance": Change("tensors", "data.__getitem__ = lambda index: -index"),
    "another class": Change("class", "data.__class__ = type('Other', (type(data),), {'__getitem__': lambda self, index: -int(index)})"),
    "an equal class": Change("class", "data.__class__ = type('Equal', (type(data),), {})"),
    # a Subset
    "indices are replaced": Change("subset", "data.indices = [0, 2, 4, 6, 1, 3, 5]"),
    "indices are appended": Change("subset", "data.indices.append(4)"),
    "indices are removed": Change("subset", "del data.indices[4:]"),
    "an index is edited": Change("subset", "data.indices[3] = 6"),
    "a negative index": Change("subset", "data.indices[3] = -1"),
    "an index of True": Change("subset", "data.indices[3] = True"),
    "an index too large": Change("subset", "data.indices[3] = 99"),
    "indices are a tensor": Change("subset", "data.indices = torch.tensor(data.indices)"),
    "indices are a tuple": Change("subset", "data.indices = tuple(data.indices)"),
    "the dataset of a subset": Change("subset", "data.dataset = [('%d' % index,) for index in range(20)]"),
    "items of a subset": Change("subset", "data.__getitems__ = None"),
    "an array is edited": Change("array", "data.indices[2:4] = 8"),
    "an array of 32 bits": Change("array", "data.indices = data.indices.astype('int32')"),
    "an array of floats": Change("array", "data.indices = data.indices.astype(float)"),
    # a ConcatDataset
    "one more dataset": Change("concat", "data.datasets.append(TensorDataset(torch.arange(50, 53)))"),
    "one more dataset, and its size": Change(
        "concat", "data.datasets.append([(7,)])\ndata.cumulative_sizes.append(data.cumulative_sizes[-1] + 1)"
    ),
    "another dataset": Change("concat", "data.datasets[0] = [('%d' % index,) for index in range(5)]"),
    "datasets are exchanged": Change("concat", "data.datasets.reverse()"),
    "sizes": Change("concat", "data.cumulative_sizes[0] -= 1"),
    "an inner dataset grows": Change("concat", "data.datasets[0].tensors = (torch.arange(40, 49),)"),
    "an inner dataset shrinks": Change("concat", "data.datasets[0].tensors = (torch.arange(40, 43),)"),
    "another kind within": Change("concat", "data.datasets[0].tensors = (np.arange(5),)"),
    "an inner list of indices": Change("inner concat", "whole.datasets[1].indices[:] = [0, 0, 1]"),
    "inner sizes": Change("inner concat", "whole.cumulative_sizes[0] -= 1"),
    # lists, and datasets of the user
    "append": Change("list", "data += data[:3]"),
    "remove": Change("list", "del data[5:]"),
    "edit an item": Change("list", "data[2] = data[4] = data[0]"),
    "an item of another kind": Change("list", "data[3] = 'a text'"),
    "more items": Change("items", "data.items.extend(data.items[:3])"),
    "fewer items": Change("items", "del data.items[5:]"),
    "other items": Change("items", "data.items = data.items[::-1]"),
    "an item that is edited": Change("items", "data.items[4] = data.items[1]"),
    "an item that cannot be collated": Change("items", "data.items[3] = object"),
    "a class with items": Change(
        "items", "data.__class__ = type('Other', (type(data),), {'__getitems__': lambda self, all: [self.items[i] for i in all][::-1]})"
    ),
    "a class with another item": Change(
        "items", "data.__class__ = type('Other', (type(data),), {'__getitem__': lambda self, index: self.items[0]})"
    ),
    "items by batch, of the instance": Change("items", "data.__getitems__ = lambda indices: [data.items[0] for _ in indices]"),
    "no items by batch": Change("batched", "data.__getitems__ = None"),
    "items of the class": Change("items", "type(data).__getitems__ = lambda self, all: [self.items[i] for i in all][::-1]"),
    "items of the class are gone": Change("batched", "del type(data).__getitems__"),
    "item of the class": Change("items", "type(data).__getitem__ = lambda self, index: self.items[index - 1]"),
    "a longer stream": Change("stream", "data.items.extend(data.items[:4])"),
    "a shorter stream": Change("stream", "del data.items[5:]"),
    # samplers
    "a longer source": Change("data_source", "sampler.data_source = range(min(len(data), 6))"),
    "a shorter source": Change("data_source", "sampler.data_source = range(3)"),
    "a generator": Change("random", "sampler.generator = torch.Generator().manual_seed(9)"),
    "no generator": Change("random", "sampler.generator = None"),
    "with replacement": Change("random", "sampler.replacement = not sampler.replacement"),
    "fewer samples": Change("random", "sampler._num_samples = 5"),
    "more samples": Change("random", "sampler._num_samples = 37"),
    "seed of the generator": Change("seeded", "sampler.generator.manual_seed(77)"),
    "a draw of the generator": Change("seeded", "torch.rand(3, generator=sampler.generator)"),
    "a class of samplers": Change(
        "random", "sampler.__class__ = type('Other', (type(sampler),), {'__iter__': lambda self: iter([1, 0, 2])})"
    ),
    "other indices": Change("indices", "sampler.indices = [0, 1, 2, 3]"),
    "one index more": Change("indices", "sampler.indices.append(0)"),
    "one index edited": Change("indices", "sampler.indices[:] = sampler.indices[::-1]"),
    "fewer indices": Change("indices", "del sampler.indices[3:]"),
    "indices as a tensor": Change("indices", "sampler.indices = torch.tensor(sampler.indices)"),
    "indices as texts": Change("indices", "sampler.indices = list('abcdef')"),
    "weights": Change("weights", "sampler.weights[:] = torch.tensor([0.0, 0, 0, 0, 1])"),
    "fewer weights": Change("weights", "sampler.weights = sampler.weights[:2]"),
    "without replacement": Change("weights", "sampler.num_samples, sampler.replacement = 4, False"),
    "bad weights": Change("weights", "sampler.weights[0] = -1"),
    "another epoch": Change("distributed", "sampler.set_epoch(3)"),
    "another seed": Change("distributed", "sampler.seed = 5"),
    "another rank": Change("distributed", "sampler.rank = 1 - sampler.rank"),
    "no shuffle": Change("distributed", "sampler.shuffle = not sampler.shuffle"),
    "more replicas": Change("distributed", "sampler.num_replicas = 3"),
    "all replicas": Change("distributed", "sampler.num_replicas, sampler.rank = 1, 0"),
    "an order": Change("own", "sampler.order = [0, 0, 1]"),
    "an order in place": Change("own", "sampler.order.extend([1, 2])"),
    "a bad index": Change("own", "sampler.order[3] = 99"),
    "a sampler that raises": Change("own", "sampler.order[3:] = [int('x') if False else None, 0]"),
    "an order in a list": Change("list sampler", "sampler.extend([1, 2])"),
    "batches in place": Change("own batches", "batches.order[2:] = [[0, 0, 0], [1]]"),
    "an empty batch": Change("own batches", "batches.order[1:2] = [[]]"),
    "a tuple as a batch": Change("own batches", "batches.order[1:2] = [(0, 1)]"),
    "the loader in the sampler": Change("own", "sampler.loader = loader"),
    "the loader behind the sampler": Change("own", "sampler.trainer = SimpleNamespace(loaders=[loader], step=1)"),
    "a method of the loader": Change("own", "sampler.length = loader.__len__"),
    # batch samplers
    "another sampler of its kind": Change("random", "loader.batch_sampler.sampler = RandomSampler(data, generator=torch.Generator().manual_seed(12))"),
    "a sampler with other indices": Change("indices", "loader.batch_sampler.sampler = SubsetRandomSampler([6, 0, 1, 2, 3, 4])"),
    "a sampler with other weights": Change("weights", "loader.batch_sampler.sampler = WeightedRandomSampler([3.0, 1, 1, 1, 1], 11)"),
    "another own sampler": Change("own", "loader.batch_sampler.sampler = Own([0, 1, 2, 3, 4, 5])"),
    "larger batches": Change("batch_sampler", "loader.batch_sampler.batch_size += 2"),
    "batches of one": Change("batch_sampler", "loader.batch_sampler.batch_size = 1"),
    "batches of none": Change("batch_sampler", "loader.batch_sampler.batch_size = 0"),
    "batches of all": Change("batch_sampler", "loader.batch_sampler.batch_size = None"),
    "batches of True": Change("batch_sampler", "loader.batch_sampler.batch_size = True"),
    "batches of a float": Change("batch_sampler", "loader.batch_sampler.batch_size = 2.0"),
    "batches below none": Change("batch_sampler", "loader.batch_sampler.batch_size = -1"),
    "batches of an int64": Change("batch_sampler", "loader.batch_sampler.batch_size = np.int64(4)"),
    "drop the last": Change("batch_sampler", "loader.batch_sampler.drop_last = not loader.batch_sampler.drop_last"),
    "another sampler": Change("batch_sampler", "loader.batch_sampler.sampler = [3, 0, 2, 1]"),
    "a class of batch samplers": Change(
        "batch_sampler",
        "loader.batch_sampler.__class__ = type('Other', (BatchSampler,), {'__iter__': lambda self: iter([[0, 1], [2]])})",
    ),
    # the loader
    "another collate_fn": Change("loader", "loader.collate_fn = lambda samples: ('other', repr(samples))"),
    "another generator": Change("loader", "loader.generator = torch.Generator().manual_seed(8)"),
    "another timeout": Change("loader", "loader.timeout = 60"),
    "no more workers": Change("loader", "loader.num_workers = 0"),
    "an attribute": Change("loader", "loader.note = 'mine'"),
    "a forbidden attribute": Change("loader", "loader.batch_size = 5"),
    # what a program reaches of the iterator
    "fetcher": Change("iterator", "iterator._dataset_fetcher.collate_fn = lambda samples: ('mine', len(samples))"),
    "fetcher's dataset": Change("iterator", "iterator._dataset_fetcher.dataset = [[index] for index in range(90)]"),
    "fetch": Change("iterator", "iterator._dataset_fetcher.fetch = lambda indices: ('fetched', list(indices))"),
    # torch's functions, and the process
    "map: a function for int": Change("default", f"{_MAPS}[int] = named('ints')", True),
    "map: a function for tensors": Change("default", f"{_MAPS}[torch.Tensor] = named('tensors')", True),
    "map: a function for floats": Change("default", f"{_MAPS}[float] = named('floats')", True),
    "map: a new type": Change("default", f"{_MAPS}[tuple] = named('tuples')", True),
    "map: no function for tensors": Change("default", f"del {_MAPS}[torch.Tensor]", True),
    "map: an empty one": Change("default", f"{_MAPS} = {{}}", True),
    "map: an equal one": Change("default", f"{_MAPS} = dict({_MAPS})", True),
    "collate": Change("default", "collate_module.collate = lambda batch, *, collate_fn_map=None: ('collate', len(batch))", True),
    "collate_tensor_fn": Change("default", f"collate_module.collate_tensor_fn = {_MAPS}[torch.Tensor] = named('tensors')", True),
    "code of collate_tensor_fn": Change(
        "default", "collate_module.collate_tensor_fn.__code__ = (lambda batch, *, collate_fn_map=None: ('code', len(batch))).__code__", True
    ),
    "code of collate": Change(
        "default", "collate_module.collate.__code__ = (lambda batch, *, collate_fn_map=None: ('code', len(batch))).__code__", True
    ),
    "default_collate": Change("default", "collate_module.default_collate = torch.utils.data.default_collate = named('default')", True),
    "torch.stack": Change("default", "torch.stack = (lambda stack: lambda *some, **named: stack(*some, **named) + 1)(torch.stack)", True),
    "torch.tensor": Change("default", "torch.tensor = (lambda make: lambda *some, **named: make(*some, **named) + 1)(torch.tensor)", True),
    "torch.as_tensor": Change("default", "torch.as_tensor = (lambda make: lambda *some, **named: make(*some, **named) + 1)(torch.as_tensor)", True),
    "Tensor.__getitem__": Change("class", "torch.Tensor.__getitem__ = (lambda get: lambda self, at: get(self, at) + 1)(torch.Tensor.__getitem__)", True),
    "TensorDataset.__getitem__": Change("class", "TensorDataset.__getitem__ = lambda self, index: -int(index)", True),
    "TensorDataset.__getitems__": Change("class", "TensorDataset.__getitems__ = lambda self, indices: [-int(index) for index in indices]", True),
    "Dataset.__getitems__": Change("class", "Dataset.__getitems__ = lambda self, indices: [-int(index) for index in indices]", True),
    "Dataset.__getattr__": Change("class", "Dataset.__getattr__ = lambda self, name: (lambda indices: [-1]) if name == '__getitems__' else 1 / 0", True),
    "code of TensorDataset.__getitem__": Change("class", "TensorDataset.__getitem__.__code__ = (lambda self, index: -int(index)).__code__", True),
    "Subset.__getitems__": Change("class", "Subset.__getitems__ = lambda self, indices: [-int(index) for index in indices]", True),
    "Subset.__getitems__ is gone": Change("class", "del Subset.__getitems__", True),
    "Subset.__getitem__": Change("class", "Subset.__getitem__ = lambda self, index: -int(index)", True),
    "ConcatDataset.__getitem__": Change("class", "ConcatDataset.__getitem__ = lambda self, index: -int(index)", True),
    "fetcher's class": Change(
        "default", "torch.utils.data._utils.fetch._MapDatasetFetcher.fetch = lambda self, indices: ('fetch', list(indices))", True
    ),
    "RandomSampler.__iter__": Change("data_source", "RandomSampler.__iter__ = lambda self: iter([2, 0, 1])", True),
    "code of RandomSampler.__iter__": Change("data_source", "RandomSampler.__iter__.__code__ = (lambda self: iter([2, 0, 1])).__code__", True),
    "RandomSampler.num_samples": Change("data_source", "RandomSampler.num_samples = property(lambda self: 4)", True),
    "SequentialSampler.__iter__": Change("data_source", "SequentialSampler.__iter__ = lambda self: iter([2, 0, 1])", True),
    "SubsetRandomSampler.__iter__": Change("indices", "SubsetRandomSampler.__iter__ = lambda self: iter([2, 0, 1])", True),
    "WeightedRandomSampler.__iter__": Change("weights", "WeightedRandomSampler.__iter__ = lambda self: iter([2, 0, 1])", True),
    "DistributedSampler.__iter__": Change("distributed", "DistributedSampler.__iter__ = lambda self: iter([2, 0, 1])", True),
    "BatchSampler.__iter__": Change("batch_sampler", "BatchSampler.__iter__ = lambda self: iter([[2, 0], [1]])", True),
    "torch.randperm": Change("data_source", "torch.randperm = lambda n, generator=None: torch.arange(n).flip(0)", True),
    "torch.randint": Change("random", "torch.randint = lambda high, size, dtype, generator=None: torch.zeros(size, dtype=dtype)", True),
    "torch.multinomial": Change("weights", "torch.multinomial = lambda weights, n, replacement, generator=None: torch.zeros(n, dtype=torch.int64)", True),
    "default dtype": Change("process", "torch.set_default_dtype(torch.float64)", True),
    "default device": Change("process", "torch.set_default_device('meta')", True),
    "no gradients": Change("process", "torch.set_grad_enabled(False)", True),
    "inference mode": Change("process", "modes.append(torch.inference_mode(True)); modes[-1].__enter__()", True),
    "autocast": Change("process", "modes.append(torch.autocast('cpu', torch.bfloat16)); modes[-1].__enter__()", True),
    "a function mode": Change("process", "modes.append(Mode()); modes[-1].__enter__()", True),
    "forward gradients": Change("process", "modes.append(torch.autograd.forward_ad.dual_level()); modes[-1].__enter__()", True),
    "seeds": Change("process", "torch.manual_seed(3), random.seed(3), np.random.seed(3)"),
    "draws": Change("process", "torch.rand(3), random.random(), np.random.rand()"),
    "one thread": Change("process", "torch.set_num_threads(1)"),
    "another folder": Change("process", "os.chdir('/')", True),
    "environment": Change("process", "os.environ['OMP_NUM_THREADS'] = '3'", True),
}  # fmt: skip


class Moment(NamedTuple):
    """When the change is made. takes: the kind of part that has it; None: every program. in_worker: only workers come
    there, if there are some."""

    place: str
    count: int = 0
    takes: str | None = None
    in_worker: bool = False


MOMENTS = {
    "before the loader": Moment("before loader"),
    "after the loader": Moment("after loader"),
    "after iter": Moment("after iter"),
    "after batch 1": Moment("after batch", 1),
    "after batch 2": Moment("after batch", 2),
    "between epochs": Moment("between epochs"),
    "by a thread": Moment("thread", 1),
    "in the sampler": Moment("sampler", 3, "sampler"),
    "in a sample": Moment("sample", 3, "sample", True),
    "in collate": Moment("collate", 2, "collate", True),
    "in worker_init_fn": Moment("worker_init", 1, "workers", True),
}
WORKERS = (0, 1, 2)


class Cell(NamedTuple):
    """The change, the moment and the workers of a case. It is drawn first, so that all cells come alike."""

    change: str
    moment: str
    workers: int

    @property
    def needs_process(self) -> bool:
        """Returns True if the program must not run in this process: it has workers, or changes torch or the process."""
        return self.workers > 0 or CHANGES[self.change].process


# torch's workers cannot send these, and its loop waits for them without end.
_HANGS = ("a parameter", "a tensor of a subclass", "sparse")


def _is_cell(cell: Cell) -> bool:
    change, moment = CHANGES[cell.change], MOMENTS[cell.moment]
    if change.of == "iterator" and (cell.workers or moment.place not in ("after iter", "after batch")):
        return False
    if moment.takes == "workers" and not cell.workers:
        return False
    if cell.workers and cell.change in _HANGS:
        return False
    if cell.change == "a forbidden attribute" and moment.place == "thread":
        return False  # the thread prints the exception
    if moment.in_worker and cell.workers and change.of in ("loader", "own", "batch_sampler"):
        return False  # a worker has no loader, and a sampler is the trainer's
    if moment.place == "collate" and cell.workers > 1:
        return False  # which worker comes there first is not fixed
    if "loader" in change.text and moment.place == "before loader":
        return False
    return bool(_pairs_for(change, moment))


def cells() -> list[Cell]:
    """Returns all cells."""
    every = itertools.starmap(Cell, itertools.product(CHANGES, MOMENTS, WORKERS))
    return [cell for cell in every if _is_cell(cell)]


# ---- which parts have both ----

_OF_DATASETS = frozenset().union(*(part.takes for part in (*DATASETS.values(), *STREAMS.values())))
_OF_SAMPLERS = frozenset().union(*(part.takes for part in SAMPLERS.values()))
_OF_COLLATES = frozenset().union(*(part.takes for part in COLLATES.values()))


def _fitting(parts: dict[str, Part], mine: frozenset[str], *wanted: str | None) -> list[str]:
    needs = {one for one in wanted if one in mine}
    return [name for name, part in parts.items() if needs <= part.takes]


def _datasets_for(change: Change, moment: Moment) -> list[str]:
    # torch's sampler of an iterable dataset has no end, so it never completes a batch of all its entries.
    parts = DATASETS if change is CHANGES["batches of all"] else {**DATASETS, **STREAMS}
    return _fitting(parts, _OF_DATASETS, change.of, moment.takes)


def _samplers_for(change: Change, moment: Moment, stream: bool) -> list[str]:
    found = _fitting(SAMPLERS, _OF_SAMPLERS, change.of, moment.takes)
    if stream:
        return [""] if change.of not in _OF_SAMPLERS and moment.takes != "sampler" else []
    return [
        name for name in found if change.of != "batch_sampler" or SAMPLERS[name].batches != "own" or name == "batches"
    ]


def _pairs_for(change: Change, moment: Moment) -> list[tuple[str, str]]:
    """Returns the datasets and samplers that fit."""
    datasets = _datasets_for(change, moment)
    return [(one, other) for one in datasets for other in _samplers_for(change, moment, one in STREAMS)]


class Case(NamedTuple):
    """A program, and the cell that it is of."""

    cell: Cell
    text: str


PREFACE = """
import os, random, threading, torch, numpy as np
from types import SimpleNamespace
from torch.utils.data import BatchSampler, ConcatDataset, Dataset, DistributedSampler, IterableDataset, RandomSampler
from torch.utils.data import Sampler, SequentialSampler, Subset, SubsetRandomSampler, TensorDataset, default_collate
from torch.utils.data import WeightedRandomSampler, get_worker_info
from torch.utils.data._utils import collate as collate_module
seen, modes, counts = [], [], {}
"""
HELPERS = {
    "Tagged": "class Tagged(torch.Tensor): pass",
    "Mode": """
class Mode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, arguments=(), named=None):
        found = function(*arguments, **(named or {}))
        return found + 1 if function in (torch.stack, torch.tensor) else found
""",
    "named": "named = lambda text: lambda batch, *, collate_fn_map=None: (text, len(batch))",
}


def _draw_options(draw: random.Random, sampler: Part | None, cell: Cell, collate: str) -> list[str]:
    options = []
    if sampler is not None and sampler.batches == "own":
        options.append("batch_sampler=batches")
    else:
        of = CHANGES[cell.change].of
        size = draw.choice([1, 2, 3, 3, 4, 50, None] if of not in ("batch_sampler", "default") else [1, 2, 3, 3, 4])
        options.append(f"batch_size={size}")
        options += ["sampler=sampler"] if sampler is not None else []
        if size is not None and draw.random() < 0.3:
            options.append("drop_last=True")
    options += ["collate_fn=collate"] if collate != "default" else []
    options.append(f"num_workers={cell.workers}")
    if cell.workers:
        options.append("multiprocessing_context='fork'")
        options += ["persistent_workers=True"] if draw.random() < 0.4 else []
        options += [f"prefetch_factor={draw.choice([1, 3])}"] if draw.random() < 0.4 else []
        options += ["worker_init_fn=init"]
    if draw.random() < 0.2:
        options.append("generator=torch.Generator().manual_seed(6)")
    return options


def _indented(text: str, depth: int) -> list[str]:
    return textwrap.indent(text, " " * 4 * depth).split("\n")


def _at(moment: Moment) -> list[str]:
    """Returns the function that the parts call. It makes the change when it is called for the n-th time at a place."""
    head = ["def at(place):", "    counts[place] = counts.get(place, 0) + 1"]
    return [*head, f"    if (place, counts[place]) == ({moment.place!r}, {moment.count}): change()"]


def draw(cell: Cell, number: int) -> Case:
    """Draws the program of a cell. number: a seed."""
    chosen = random.Random(f"{cell} {number}")
    change, moment = CHANGES[cell.change], MOMENTS[cell.moment]
    dataset, sampler = chosen.choice(_pairs_for(change, moment))
    if change.of not in _OF_SAMPLERS and moment.takes != "sampler" and chosen.random() < 0.3:
        sampler = ""
    collate = chosen.choice(_fitting(COLLATES, _OF_COLLATES, change.of, moment.takes))
    part = SAMPLERS.get(sampler)
    options = _draw_options(chosen, part, cell, collate)
    lines = ["def change():", *_indented(_as_global(change.text), 1)]
    lines += ["def init(worker): at('worker_init')"] if cell.workers else []
    lines += [({**DATASETS, **STREAMS})[dataset].text, *([part.text] if part else [])]
    lines += [COLLATES[collate].text] if collate != "default" else []
    lines += _run(moment, options)
    body = "\n".join(lines) + "\n"
    before = [
        PREFACE.strip(),
        *(text.strip() for name, text in HELPERS.items() if f"{name}(" in body or f"{name})" in body),
    ]
    before += _at(moment) if "at(" in body else []
    return Case(cell, "\n".join(before) + "\n" + body)


def _as_global(text: str) -> str:
    """Returns a change for the body of a function: `data += ...` assigns to a global variable."""
    return f"global data\n{text}" if text.startswith("data +=") else text


def _run(moment: Moment, options: list[str]) -> list[str]:
    place, count = moment.place, moment.count
    lines = ["change()"] if place == "before loader" else []
    lines.append(f"loader = DataLoader(data, {', '.join(options)})")
    lines += ["change()"] if place == "after loader" else []
    lines += ["for epoch in range(2):", "    iterator = iter(loader)"]
    lines += ["    if epoch == 0: change()"] if place == "after iter" else []
    lines += ["    for step in range(99):", "        try:", "            take(next(iterator))"]
    lines += ["        except StopIteration:", "            break"]
    lines += ["        except Exception as error:", "            take(error)"]
    if place == "after batch":
        lines.append(f"        if (epoch, step) == (0, {count - 1}): change()")
    if place == "thread":
        lines.append(f"        if (epoch, step) == (0, {count - 1}):")
        lines += ["            thread = threading.Thread(target=change)", "            thread.start(), thread.join()"]
    lines += ["    if epoch == 0: change()"] if place == "between epochs" else []
    return lines


def drawn(seed: str, chosen: list[Cell]) -> Iterator[Case]:
    """Yields cases without end: all of the cells in some order, then in another one."""
    for number in itertools.count():
        order = random.Random(f"{seed} {number}").sample(chosen, len(chosen))
        for cell in order:
            yield draw(cell, number if number else random.Random(f"{seed} {cell}").getrandbits(32))
