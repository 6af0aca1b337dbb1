"""The GPU campaign: training, recording, measuring and reporting in resumable stages."""
