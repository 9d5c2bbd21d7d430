"""The leader of an application: its decisions (pure functions), and the tick that carries them out."""
