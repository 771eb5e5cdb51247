# The dashboard and its workers. TORCH_INDEX decides on the build of torch: the CPU's, unless another is named.
FROM python:3.11-slim

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1

# Torch first and alone: the other packages come from the usual index, and change more often.
COPY constraints.txt /app/
RUN pip install --index-url "$TORCH_INDEX" "$(grep '^torch==' /app/constraints.txt)"

COPY capture /app/capture
COPY pyproject.toml README.md LICENSE manage.py /app/
COPY checks /app/checks
COPY workers /app/workers
COPY plumbline_web /app/plumbline_web
COPY templates /app/templates
COPY static /app/static
RUN pip install -c /app/constraints.txt -e /app/capture -e /app && python -m compileall -q /app

RUN useradd --uid 10001 --create-home plumbline && install -d -o plumbline -g plumbline -m 750 /data
USER plumbline
WORKDIR /home/plumbline

# One thread: tiny models are a hundred times slower with several. Nothing is fetched from a model hub.
ENV PLUMBLINE_DATA=/data \
    PLUMBLINE_ROOTS=/models \
    OMP_NUM_THREADS=1 \
    TOKENIZERS_PARALLELISM=false \
    HF_HUB_OFFLINE=1 \
    TRANSFORMERS_OFFLINE=1 \
    HF_DATASETS_OFFLINE=1

EXPOSE 8000
VOLUME /data
CMD ["gunicorn", "--config", "python:plumbline_web.up.gunicorn", "--bind", "0.0.0.0:8000", "plumbline_web.wsgi"]
