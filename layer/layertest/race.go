//go:build race

package layertest

// raced says that the race detector is at work, under which a sync.Pool drops
// some of what it is given.
const raced = true
