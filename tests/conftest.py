"""Set-up shared by all tests: shape checks on, silent broadcasting off, float64 on request."""

import copy
import ctypes
import gc
import os
import platform
import sys
import threading
from importlib.metadata import version
from pathlib import Path

# Compiling is most of what tests do: without optimisation, and programs are shared between processes and with the next
# run. Without optimisation a product and a sum are rounded once or twice by chance, and programs that should agree to
# the bit do not; where there is no instruction for both at once (AVX has none) it is always twice.
if version("jaxlib").startswith("0.10."):  # a later one may not know these, and leaves where it does not
    QUICKLY = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    QUICKLY += " --xla_cpu_parallel_codegen_split_count=1"  # parts for more cores than two processes leave free
    if platform.machine() == "x86_64":
        QUICKLY += " --xla_cpu_max_isa=AVX"
    os.environ["XLA_FLAGS"] = f"{QUICKLY} {os.environ.get('XLA_FLAGS', '')}"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".xla_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")  # small ones too: there are thousands
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# Many processes share a GPU, each of which would take three quarters of its memory.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import hypothesis
import jax
import processes
import pytest
import shapes

shapes.install("sphere")

# Tracing makes objects by the hundred thousand, most of which stay: looking for garbage among them every 700 takes as
# long as lowering.
gc.set_threshold(50_000, 20, 50)

if version("jaxlib").startswith("0.10."):  # as above: later ones may name this otherwise
    from jax._src.interpreters import mlir

    _fresh, _known = mlir.make_ir_context, threading.local()

    def context_for_fifty():
        """Half of lowering a small program is making MLIR's context: here 50 programs of a thread share one."""
        if not getattr(_known, "left", 0):
            _known.context, _known.left = _fresh(), 50
        _known.left -= 1
        return _known.context

    mlir.make_ir_context = context_for_fifty

jax.config.update("jax_numpy_rank_promotion", "raise")
# On a GPU float32 products default to TF32, ten bits short of the references.
jax.config.update("jax_default_matmul_precision", "highest")


# Neither is a machine that is busy a failure.
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("patient")


LONGEST = (
    "test_pixels_learning",
    "test_experiments_launchers",
    "test_experiments_pages",
    "test_encoders",
    "test_td3",
    "test_resume_suites",
    "test_ntk",
    "test_transformer",
    "test_extending",
    "test_methods_runs",
    "test_tutorials",
    "test_metaworld",
    "test_tokens",
    "test_ladder",
    "test_training_resume",
    "test_training_groups",
    "test_td3_runs",
    "test_nets",
    "test_training",
    "test_worlds_source",
    "test_transformer_penalty",
    "test_torch_examples",
    "test_td3_offline",
)


def pytest_generate_tests(metafunc):
    """Tests of PyTorch with a `device` run on the CPU and on a GPU that is there, without TF32."""
    if "device" in metafunc.fixturenames:
        torch = sys.modules["torch"]  # their files import it, or are skipped before they come here
        devices = ["cpu"]
        if torch.cuda.is_available():
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
            devices.append("cuda")
        metafunc.parametrize("device", devices)


def pytest_collection_modifyitems(items):
    """The longest files first: of several processes, each of which takes a file at a time, none is left alone at the
    end."""
    here = {path.stem for path in Path(__file__).parent.glob("test_*.py")}
    assert here.issuperset(LONGEST), f"no such files: {set(LONGEST) - here}"
    order = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.module.__name__, len(order)))


@pytest.fixture(autouse=True)
def nothing_outlives_its_test():
    """Also not what a test that failed has started."""
    yield
    processes.end_all()


ENOUGH = 3 << 30
"""Bytes of memory from which on a process forgets what it has compiled: else it reaches 7 GB."""


@pytest.fixture(scope="module", autouse=True)
def memory_is_given_back():
    yield
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    if pages * os.sysconf("SC_PAGE_SIZE") > ENOUGH:
        jax.clear_caches()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # glibc, as /proc is Linux


@pytest.fixture(scope="module")
def new_garbage_alone():
    """`gc.collect()` looks at nothing older than the module: half a second less each, with all that is compiled."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def no_orphans(new_garbage_alone):
    """Of a test no process is left, and a pool that is forgotten ends its own."""
    before = processes.children(os.getpid())
    yield
    processes.end_all()
    gc.collect()
    assert processes.children(os.getpid()) <= before


@pytest.fixture(scope="module")
def models_compiled_once():
    """Most of what tests of simulators do is compiling models: each file is compiled once, and after that copied."""
    mujoco = pytest.importorskip("mujoco")
    compiled, known = mujoco.MjModel.from_xml_path, {}

    def load(path):
        if path not in known:
            known[path] = compiled(path)
        return copy.copy(known[path])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mujoco.MjModel, "from_xml_path", staticmethod(load))
        yield


@pytest.fixture
def x64():
    """Double precision inside the test, for comparisons at 1e-10 and below."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def double_precision():
    """As `x64`, for all of a module: hypothesis wants no fixture that is made again for every test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="session")
def straight(tmp_path_factory):
    """`fleets.TINY`, trained from start to end without a stop, once for all processes of the tests."""
    import fleets

    own = tmp_path_factory.getbasetemp()
    return fleets.trained(fleets.TINY, (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "straight")
