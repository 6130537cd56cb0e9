"""Every way a message can kill, on every pool and broker, against one worker and against three."""
