"""Published draft trees and accepted lengths; `SOURCES.txt` beside the files has their sources."""

from pathlib import Path

FOLDER = Path(__file__).parent
