package profiles

import (
	"context"
	"errors"
	"iter"
)

// Source watches the profiles of destinations.
//
// The sequence goes on until ctx ends or the consumer breaks; then it has
// released all it held. Each profile replaces the one before it as a whole.
// An error is news, not the end: the last profile stays in force, and the
// source goes on trying. The one exception is an error that matches
// [ErrNoProfile], which is the last item.
//
// A Source is safe for concurrent use; each call of Watch is its own stream.
type Source interface {
	Watch(ctx context.Context, target string) iter.Seq2[*Profile, error]
}

// ErrNoProfile says that a source will never have a profile for a target: it
// is not a name that the source knows anything of.
var ErrNoProfile = errors.New("no profile for this name")
