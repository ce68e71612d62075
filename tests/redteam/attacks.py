"""The table that attacks enter themselves into."""

ALL = {}


def attack(row):
    """Enters an attack under its name, with dashes; `row` is what it is about: a row of the design's list, or a few words."""
    def enter(play):
        ALL[play.__name__.replace("_", "-")] = (row, play)
        return play
    return enter
