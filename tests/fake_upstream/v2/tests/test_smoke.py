import unittest

from simpletuner.helpers.training.trainer import Loop


class SmokeTest(unittest.TestCase):
    def test_runs(self):
        self.assertEqual(Loop({"rounds": 4}).run(), 4)


if __name__ == "__main__":
    unittest.main()
