from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)  # durations vary on shared machines
settings.load_profile("no-deadline")
