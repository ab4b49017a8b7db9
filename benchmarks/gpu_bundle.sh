#!/bin/sh
# Prepares .wheels/ (git-ignored): what a CUDA machine without network lacks to run benchmarks.gpu, for Python 3.12 on
# x86-64 Linux that has torch, triton and transformers already. Then prints the command to run there.
#
#   benchmarks/gpu_bundle.sh [PYTHON]      PYTHON: one whose pip may download; .venv/bin/python by default
#
# With KERNELS=1 FlashInfer's kernels are compiled here, for Hopper, and stay in .wheels/. That takes half an hour on few
# cores, and a CUDA toolkit; what is not there `check` compiles on the machine itself.
set -eu
cd "$(dirname "$0")/.."
python=${1:-.venv/bin/python}
mkdir -p .wheels
rm -f .wheels/*.whl  # kernels that were compiled stay
set --
for version in 28 27 17 34 35; do
    set -- "$@" --platform "manylinux_2_${version}_x86_64"
done
"$python" -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
    "$@" --platform manylinux2014_x86_64 --platform manylinux1_x86_64 -d .wheels \
    flashinfer-python==0.6.4 'apache-tvm-ffi>=0.1.6,!=0.1.8,<0.2' \
    fastapi starlette uvicorn 'pydantic>=2.11,<3' pydantic-settings python-dotenv annotated-types typing-inspection \
    pyzmq msgspec 'xgrammar>=0.1.32' python-multipart
# pydantic works with one version of its core only
core=$("$python" -c "
import glob, re, zipfile
wheel = zipfile.ZipFile(glob.glob('.wheels/pydantic-*.whl')[0])
metadata = next(name for name in wheel.namelist() if name.endswith('dist-info/METADATA'))
print(re.search(r'Requires-Dist: pydantic-core\s*\(?(==[\w.]+)', wheel.read(metadata).decode())[1])
")
"$python" -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
    "$@" --platform manylinux2014_x86_64 -d .wheels "pydantic-core$core"
# the project itself, as it lies here, so that its plugins are found through their entry points
copy=$(mktemp -d)
git ls-files -co --exclude-standard | tar -cf - -T - | tar -xf - -C "$copy"
"$python" -m pip wheel -q --no-deps -w .wheels "$copy"
rm -rf "$copy"
if [ "${KERNELS:-0}" = 1 ]; then
    site=$(mktemp -d)
    "$python" -m pip install -q --no-deps --target "$site" .wheels/flashinfer_python-*.whl apache-tvm-ffi \
        nvidia-curand==10.4.0.35 nvidia-ml-py einops tabulate requests click ninja filelock tqdm
    PATH="$site/bin:$PATH" PYTHONPATH="$site" "$python" -m benchmarks.gpu.flashinfer_build "$site/kernels/aot"
    tar -czf .wheels/flashinfer-aot.tgz -C "$site/kernels/aot" .
    rm -rf "$site"
fi
du -sh .wheels
ls .wheels
cat <<'TEXT'

Carry this folder (.wheels too) to the machine, and run there:

  python3 -m pip install -q --no-index --no-deps --no-compile --target /tmp/site .wheels/*.whl && \
  export PYTHONPATH=/tmp/site PYTHONUNBUFFERED=1 && aot=/tmp/site/flashinfer/data/aot && mkdir -p $aot && \
  { [ ! -f .wheels/flashinfer-aot.tgz ] || tar -xzf .wheels/flashinfer-aot.tgz -C $aot; } && \
  python3 -m benchmarks.gpu check --out "$OUT" --budget 270; python3 -m benchmarks.gpu bench --out "$OUT" --budget 300
TEXT
