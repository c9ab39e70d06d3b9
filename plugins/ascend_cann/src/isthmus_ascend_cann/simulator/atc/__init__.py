"""A simulated `atc`: the real flags and answers, an `.om` of the real layout for the simulated device."""
