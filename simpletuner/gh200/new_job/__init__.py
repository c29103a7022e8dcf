"""From a folder of pictures to a config that trains: `python -m simpletuner.gh200.new_job FOLDER`."""
