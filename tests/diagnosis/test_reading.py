"""Reading a log: formats of the allocator and of Megatron, damaged and hostile files, constant memory."""

from __future__ import annotations

import gzip
import random
import tracemalloc
from pathlib import Path

import pytest

from moe_long_context.diagnosis import reader
from moe_long_context.diagnosis.places import place_of
from moe_long_context.diagnosis.scan import scan
from moe_long_context.diagnosis.torch_oom import oom_figures
from moe_long_context.errors import BadValueError, UnreadableFileError
from moe_long_context.tools import diagnose_failure
from moe_long_context.units import GIB, MIB

from . import make_log


@pytest.mark.parametrize("version", ["1.13", "2.0", "2.1", "2.2", "2.6", "2.9"])
def test_every_wording_of_the_allocator_gives_the_same_figures(version: str) -> None:
    """pytorch CUDACachingAllocator.cpp: brackets to 2.0, sentences with `capacty` in 2.1, `capacity` from 2.2."""
    figures = oom_figures(make_log.oom_text(29.36, 65.0, unused=1.5, total=79.11, version=version))
    expected = {"requested": 29.36, "allocated": 65.0, "reserved_unallocated": 1.5, "capacity": 79.11}
    assert {k: round(v / GIB, 2) for k, v in figures.items() if k in expected} == expected


def test_memory_of_other_processes_and_graph_pools_is_read() -> None:
    """PyTorch 2.3 and newer name private pools, and any version names other processes."""
    figures = oom_figures(make_log.oom_text(1.0, 50.0, pools=6.5, others=12.25))
    assert (figures["private_pools"] / GIB, figures["other_processes"] / GIB) == (6.5, 12.25)


def test_the_traceback_of_one_rank_is_followed_through_interleaved_ranks() -> None:
    """torchrun writes ranks line by line into one file; the place is that of the rank that failed."""
    lines = [make_log.oom("loss", 10, 60, rank=3), make_log.oom("experts", 2, 70, rank=9)]
    mixed = [line for pair in zip(*lines, strict=False) for line in pair] + [*lines[0][len(lines[1]) :]]
    facts = scan("\n".join(mixed) + "\n")
    assert {event.rank: event.place for event in facts.ooms} == {"3": "loss", "9": "experts"}


@pytest.mark.parametrize(
    "label",
    ["[rank7]: ", "[default7]:", "7: ", "train/0 [default7]:", "(WorkerDict pid=7, ip=10.0.0.1) ", "worker-3 | 7: "],
)
def test_labels_of_launchers_are_read(label: str) -> None:
    """torchrun, Slurm, NeMo-Run, Ray and docker compose each write the rank in their own way."""
    text = "\n".join(label + line for line in make_log.oom("loss", 10, 60, rank=None))
    event = scan(text + "\n").ooms[0]
    assert (event.rank, event.place) == ("pid 7" if "pid" in label else "7", "loss")


def test_megatron_lines_are_read_with_their_units() -> None:
    """MB of Megatron-LM is 2**20 bytes, GB of Megatron Bridge 1e9; elapsed time is printed in milliseconds."""
    text = "\n".join([
        make_log.step(7, tflops=201.5, seconds=31.5),
        "[Rank 4] (after 2 iterations) memory (MB) | allocated: 1024.00 | max allocated: 2048.00 | reserved: 3072.00",
        "[Rank 0] (after 2 iterations) memory (GB) | mem-allocated-gigabytes: 2.0 | mem-alloc-retires: 3",
        "Theoretical memory footprints: weight and optimizer=1024.00 MB, activation=512.00 MB, total=1536.00 MB",
        "using world size: 64, data-parallel size: 2, context-parallel size: 4, hierarchical context-parallel sizes: "
        "None, tensor-model-parallel size: 2, pipeline-model-parallel size: 4",
        "  expert_model_parallel_size ...................... 8",
    ])  # fmt: skip
    facts = scan(text + "\n")
    assert facts.last_iteration is not None
    assert (facts.last_iteration.number, facts.last_iteration.step_time_s, facts.best_tflops) == (7, 31.5, 201.5)
    assert facts.reports[4].values["max_allocated"] == 2048 * MIB
    assert facts.reports[0].values["mem-allocated-gigabytes"] == 2e9
    assert facts.reports[0].retries == 3
    assert facts.theoretical_bytes == {"weight_and_optimizer": 1024 * MIB, "activation": 512 * MIB, "total": 1536 * MIB}
    assert facts.config_facts == {
        "num_gpus": 64, "context_parallel_size": 4, "tensor_model_parallel_size": 2,
        "pipeline_model_parallel_size": 4, "expert_model_parallel_size": 8,
    }  # fmt: skip


def test_sizes_printed_in_the_log_fill_the_configuration_and_are_named() -> None:
    """A log alone carries the mesh; what is taken from it is an assumption that is shown."""
    text = (
        "using world size: 64, data-parallel size: 2, context-parallel size: 4, hierarchical context-parallel sizes: "
    )
    text += "None, tensor-model-parallel size: 2, pipeline-model-parallel size: 4\n"
    answer = diagnose_failure(model="qwen3-30b-a3b", log=text + "\n".join(make_log.oom("experts", 2, 70)))
    assert "context_parallel_size = 4 (printed in the log)" in answer.assumptions
    assert not {"tp", "cp", "pp"} & set(answer.result.missing)


def test_colours_carriage_returns_and_utf16_do_not_hide_an_error(tmp_path: Path) -> None:
    """Terminals colour, progress bars return, PowerShell writes UTF-16."""
    text = "\n".join(make_log.oom("loss", 10, 60, rank=None))
    coloured = "\x1b[31m" + text.replace("CUDA", "\x1b[1;33mCUDA\x1b[0m") + "\x1b[0m\n"
    wide = tmp_path / "wide.log"
    wide.write_bytes(("\ufeff" + text).encode("utf-16-le"))
    packed = tmp_path / "packed.log.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    assert [
        scan(source).ooms[0].place for source in (coloured, text.replace("\n", "\r\n"), str(wide), str(packed))
    ] == ["loss"] * 4  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_binary_noise_is_answered_not_fatal(tmp_path: Path, seed: int) -> None:
    """A core file handed over as a log gives a clear answer."""
    noise = tmp_path / "core.bin"
    noise.write_bytes(random.Random(seed).randbytes(300_000))
    answer = diagnose_failure(log=str(noise))
    assert answer.ok
    assert answer.result.causes[0].cause == "log_is_not_text"


def test_a_damaged_gzip_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    """A log that is still being written ends in the middle of a block."""
    body = gzip.compress(("\n".join(make_log.oom("loss", 10, 60)) + "\n" + "x\n" * 100_000).encode())
    cut = tmp_path / "cut.log.gz"
    cut.write_bytes(body[: len(body) - 20])
    assert scan(str(cut)).n_bytes >= 0


def test_memory_stays_constant_while_a_log_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """24 MiB of steps are read within 12 MiB; nothing grows with the file."""
    line = (make_log.step(5) + "\n").encode()
    chunk = line * ((1 << 20) // len(line))
    monkeypatch.setattr("moe_long_context.diagnosis.scan.open_chunks", lambda log: (chunk for _ in range(24)))
    tracemalloc.start()
    facts = scan("anything")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert facts.n_bytes > 22 << 20
    assert peak < 12 << 20


def test_a_line_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hostile file of one line is read in windows."""
    chunks = [b"a" * (1 << 20)] * 8 + [b" CUDA out of memory. Tried to allocate 2.00 GiB. " + b"b" * (1 << 20)]
    monkeypatch.setattr("moe_long_context.diagnosis.scan.open_chunks", lambda log: iter(chunks))
    assert scan("anything").ooms[0].requested == 2 * GIB


def test_thousands_of_ranks_are_counted_and_a_few_kept() -> None:
    """Every rank of a large job prints the same traceback."""
    text = "\n".join(line for rank in range(600) for line in make_log.oom("loss", 10, 60, rank=rank))
    facts = scan(text)
    assert facts.oom_count >= 64
    assert len(facts.ooms) == 16


@pytest.mark.parametrize("text", ["", "   \n "])
def test_an_empty_log_is_refused(text: str) -> None:
    """Nothing to read is an error with a way out, not an empty answer."""
    with pytest.raises(BadValueError):
        scan(text)


@pytest.mark.parametrize("path", ["/nowhere/run.log", "missing.log", "/dev/zero", "/"])
def test_a_path_that_is_no_file_is_refused(path: str) -> None:
    """Folders, devices and missing files give one clear line."""
    with pytest.raises(UnreadableFileError):
        scan(path)
    assert diagnose_failure(log=path).error.code == "unreadable_file"


def test_text_and_path_are_told_apart(tmp_path: Path) -> None:
    """A short log passed as text is not looked for on the disk."""
    assert scan("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB").oom_count == 1
    file = tmp_path / "with space.log"
    file.write_text("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n", encoding="utf-8")
    assert scan(str(file)).oom_count == 1


def test_blocks_end_at_lines_and_keep_a_tail() -> None:
    """A traceback that crosses a block border is still seen whole."""
    lines = make_log.oom("loss", 10, 60)
    padding = "filler line\n" * (reader.BLOCK_BYTES // 12)
    text = padding[: reader.BLOCK_BYTES - 400] + "\n" + "\n".join(lines) + "\n"
    assert scan(text).ooms[0].place == "loss"


@pytest.mark.parametrize("place", ["loss", "optimizer", "experts", "attention", "mask", "graph", "build"])
def test_the_innermost_telling_frame_names_the_place(place: str) -> None:
    """Module names of megatron-core 0.19.2 and TransformerEngine."""
    frames = [f"{'/'.join(file.split('/')[-2:])}:{function}" for file, function in make_log.FRAMES[place]]
    assert place_of(frames) == place
