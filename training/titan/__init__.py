"""torchtitan in a job: `python -m training.titan --module llama3 --config llama3_8b …`."""
