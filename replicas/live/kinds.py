"""The kinds of replica that are not simulated."""

from replicas.live.config import Vllm
from replicas.live.openai import OpenAiServer

LIVE = (Vllm, OpenAiServer)
