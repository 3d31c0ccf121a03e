// Package oncelog logs a repeated problem once.
package oncelog

import (
	"errors"
	"fmt"
)

// maxTexts is how many error texts a [Logger] logs in one round, which ends when End is called, and
// maxBytes is the length in bytes to which a text is cut. A peer must not be able to fill the log.
const (
	maxTexts = 10
	maxBytes = 500
)

// Logger logs problems with one target in rounds, usually one round for each received message. It
// logs a text only if it was not in the previous round. It must not be used concurrently.
type Logger struct {
	Log func(error) // nil means that nothing is logged

	previous, current       map[string]bool // texts from the previous round and from this one
	droppedBefore, droppedN int             // the numbers of dropped texts in these rounds
}

// Add logs err, unless this round or the previous one already contains its text, or this round contains
// maxTexts texts.
func (l *Logger) Add(err error) {
	if l.Log == nil {
		return
	}
	if len(l.current) >= maxTexts {
		l.droppedN++
		return
	}
	text := err.Error()
	if len(text) > maxBytes {
		text = text[:maxBytes] + "…"
		err = errors.New(text)
	}
	if l.current[text] {
		return
	}
	if l.current == nil {
		l.current = make(map[string]bool)
	}
	// Also remember a text that is not logged, so that the next round does not log it either.
	l.current[text] = true
	if !l.previous[text] {
		l.Log(err)
	}
}

// End ends a round. If errors were not logged because of maxTexts, End logs their number,
// unless the number was the same in the previous round.
func (l *Logger) End() {
	if l.droppedN > 0 && l.droppedN != l.droppedBefore {
		l.Log(fmt.Errorf("and %d more", l.droppedN))
	}
	l.previous = l.current
	l.droppedBefore = l.droppedN
	l.current = nil
	l.droppedN = 0
}
