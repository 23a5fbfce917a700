"""Complete a text with OpenAI's client: openai_stream.py PORT MODEL PROMPT."""

import json
import sys

from openai import OpenAI

port, model, prompt = sys.argv[1:]
client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
request = {"model": model, "prompt": prompt, "max_tokens": 12, "temperature": 0}
whole = client.completions.create(**request)
parts = [part.choices[0].text for part in client.completions.create(**request, stream=True)]
print(json.dumps({"text": whole.choices[0].text, "parts": parts}))  # noqa: T201
