#!/usr/bin/env bash
# Build the image without a registry, on a base of Debian's packages, and try it: a chat, the health check, the user.
# Needs root, and Debian's buildah and debootstrap. Where a volume is needed to install packages (a mirror's certificate,
# a folder of wheels), BUILD_OPTIONS has it: BUILD_OPTIONS="--volume /opt/wheels:/opt/wheels:ro" deploy/build_on_debian.sh
set -euo pipefail
cd "$(dirname "$0")/.."

folder="${BUILD_FOLDER:-$(mktemp --directory)}"
release=bookworm
version="$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')" # that of the Debian release
export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=vfs
port="${PORT:-32410}"

images() { buildah --root "$folder/images" --runroot "$folder/run" "$@"; }

stop() {
    if [ -n "${server:-}" ]; then
        pkill --parent "$server" || true
        wait "$server" || true
    fi
    if [ -z "${BUILD_FOLDER:-}" ]; then rm -rf "$folder"; fi
}
trap stop EXIT

if [ ! -d "$folder/base" ]; then
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates "$release" "$folder/base"
    ln -s python3 "$folder/base/usr/bin/python"
fi
base="$(images from scratch)"
images add --quiet "$base" "$folder/base" / >/dev/null
images config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$base"
images commit --quiet "$base" "docker.io/library/python:$version-slim-$release"
# shellcheck disable=SC2086
images build --format docker --pull=false --build-arg "PYTHON_VERSION=$version" \
    --build-arg "TORCH_CPU_INDEX=${TORCH_CPU_INDEX-https://download.pytorch.org/whl/cpu}" ${BUILD_OPTIONS:-} --tag sglang-plug .

container="$(images from --pull-never localhost/sglang-plug)"
images run --env SGLANG_PLUG_HOST=127.0.0.1 --env "SGLANG_PLUG_PORT=$port" "$container" -- sglang-plug serve &
server=$!
for _ in $(seq 120); do
    if curl --silent --fail "http://127.0.0.1:$port/health"; then break; fi
    kill -0 "$server"
    sleep 1
done
curl --silent --fail-with-body "http://127.0.0.1:$port/v1/chat/completions" --header 'content-type: application/json' \
    --data '{"model": "demo", "messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 12}' |
    grep Paris
[ "$(images run "$container" -- id --user)" = 10001 ]
if images run "$container" -- touch /opt/sglang-plug/written; then
    echo "the user of the image can write to the program" >&2
    exit 1
fi
images run "$container" -- sh -c 'ls /opt/sglang-plug/lib/python*/site-packages/sglang_plug_backends/avx512/compiled/*.so'
echo "The image was built, and its server answers."
