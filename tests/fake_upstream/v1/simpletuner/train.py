from simpletuner.helpers.training.trainer import Loop

if __name__ == "__main__":
    Loop({"rounds": 3}).run()
