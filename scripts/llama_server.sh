#!/usr/bin/env bash
# PYTHON FILE: builds llama.cpp's own server, from the source that llama-cpp-python has, as FILE. It
# is no dependency of anything here.
set -euo pipefail
name=llama_cpp_python-0.3.36
mkdir -p build/llama
echo 'llama-cpp-python==0.3.36 --hash=sha256:832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e' >build/llama/wanted
"$1" -m pip download --quiet --no-deps --no-binary llama-cpp-python --dest build/llama --requirement build/llama/wanted
tar -xzf build/llama/$name.tar.gz -C build/llama
cmake -S build/llama/$name/vendor/llama.cpp -B build/llama/cmake -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
  -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_USE_PREBUILT_UI=OFF
cmake --build build/llama/cmake --target llama-server --parallel 2
install -D build/llama/cmake/bin/llama-server "$2"
