"""The table of all attacks."""

ALL = {}


def attack(row):
    """Registers an attack under its name, with dashes. `row` is its subject, starting with the number of its class if any."""
    def enter(play):
        name = play.__name__.replace("_", "-")
        if name in ALL:
            raise KeyError(f"two attacks have the name {name}: one of them would not be played")
        ALL[name] = (row, play)
        return play
    return enter
