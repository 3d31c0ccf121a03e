// Package remark keeps a log short of what others say wrongly.
package remark

import (
	"errors"
	"fmt"
)

// mostRemarks is how many there are of one round, and mostText how many bytes of
// one: who sends the messages must not fill the log.
const (
	mostRemarks = 10
	mostText    = 500
)

// Remarks are what is amiss in the messages of one target, said in rounds: a
// message that replaces all, or a stream of changes. Each remark is made once,
// and again when a round was without it. It is for one goroutine.
type Remarks struct {
	Say func(error) // nil is silence

	before, now map[string]bool
	wereMore    int
	more        int
}

// Add makes a remark, unless it is known or there are too many.
func (r *Remarks) Add(err error) {
	if r.Say == nil {
		return
	}
	if len(r.now) >= mostRemarks {
		r.more++
		return
	}
	text := err.Error()
	if len(text) > mostText {
		text = text[:mostText] + "…"
		err = errors.New(text)
	}
	if r.now[text] {
		return
	}
	if r.now == nil {
		r.now = make(map[string]bool)
	}
	r.now[text] = true
	if !r.before[text] {
		r.Say(err)
	}
}

// End ends a round. It says how many remarks were too many, if that is new.
func (r *Remarks) End() {
	if r.more > 0 && r.more != r.wereMore {
		r.Say(fmt.Errorf("and %d more", r.more))
	}
	r.before, r.wereMore = r.now, r.more
	r.now, r.more = nil, 0
}
