"""The table that attacks enter themselves into."""

ALL = {}


def attack(row):
    """Enters an attack under its name, with dashes; `row` is what it is about: a row of the design's list, or a few words."""
    def enter(play):
        name = play.__name__.replace("_", "-")
        if name in ALL:
            raise KeyError(f"two attacks have the name {name}: one of them would not be played")
        ALL[name] = (row, play)
        return play
    return enter
