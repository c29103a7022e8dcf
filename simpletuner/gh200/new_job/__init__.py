"""From a directory of images to a config that trains: `python -m simpletuner.gh200.new_job DIRECTORY`."""
