"""Learning algorithms: settings, state, init, act, loss, update; pure functions of arrays."""
