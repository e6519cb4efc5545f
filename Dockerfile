# ampft with the model of its demo:
#   docker build -t ampft .
#   docker run --rm ampft                                      trains in real fp16 on the CPU, as README does
#   docker run --rm ampft python recipes/compare_precision.py --modes fp32,bf16 --budget 15min
# pip's torch for Linux includes CUDA, so that `docker run --gpus all ampft` finds a GPU (unproven: nothing has run on
# one yet). For a smaller image without CUDA, pass the address of the CPU wheels that pytorch.org names:
#   docker build -t ampft --build-arg TORCH_INDEX=ADDRESS .
FROM python:3.11-slim
ARG TORCH_INDEX=""
RUN useradd --create-home user
WORKDIR /home/user/ampft
RUN pip install --no-cache-dir torch==2.13.0 ${TORCH_INDEX:+--index-url "$TORCH_INDEX"}
COPY . .
RUN pip install --no-cache-dir -c constraints.txt -e ".[demo]" && chown -R user .
USER user
CMD ["accelerate", "launch", "recipes/classify.py", "--mixed_precision", "fp16"]
