// Package oncelog logs a repeated problem once.
package oncelog

import (
	"errors"
	"fmt"
)

// maxTexts is the largest number of error texts that a [Logger] logs in one round, which ends with
// a call of End. maxBytes is the length in bytes to which a text is cut. The limits exist because a
// peer must not fill the log.
const (
	maxTexts = 10
	maxBytes = 500
)

// Logger logs the problems of one target in rounds, for example one round for each
// received message. It logs a text only if the previous round did not have it. It must
// not be used concurrently.
type Logger struct {
	Log func(error) // nil means that nothing is logged

	before, now             map[string]bool // the texts of the previous round and of this one
	droppedBefore, droppedN int             // the numbers of dropped texts in these rounds
}

// Add logs err. It logs nothing if this round or the previous one already had the same
// text, or if this round has maxTexts texts.
func (l *Logger) Add(err error) {
	if l.Log == nil {
		return
	}
	if len(l.now) >= maxTexts {
		l.droppedN++
		return
	}
	text := err.Error()
	if len(text) > maxBytes {
		text = text[:maxBytes] + "…"
		err = errors.New(text)
	}
	if l.now[text] {
		return
	}
	if l.now == nil {
		l.now = make(map[string]bool)
	}
	l.now[text] = true
	if !l.before[text] {
		l.Log(err)
	}
}

// End ends a round. If errors were not logged because of maxTexts, End logs their number,
// unless the number was the same in the previous round.
func (l *Logger) End() {
	if l.droppedN > 0 && l.droppedN != l.droppedBefore {
		l.Log(fmt.Errorf("and %d more", l.droppedN))
	}
	l.before, l.droppedBefore = l.now, l.droppedN
	l.now, l.droppedN = nil, 0
}
