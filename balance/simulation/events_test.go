package simulation

import "time"

// event is what happens at a time; of two at the same time, the one that was
// planned first.
type event struct {
	at  time.Duration
	seq int
	do  func()
}

type events []event

func (e *events) Len() int { return len(*e) }

func (e *events) Less(i, j int) bool {
	a, b := &(*e)[i], &(*e)[j]
	if a.at != b.at {
		return a.at < b.at
	}
	return a.seq < b.seq
}

func (e *events) Swap(i, j int) { (*e)[i], (*e)[j] = (*e)[j], (*e)[i] }

func (e *events) Push(x any) { *e = append(*e, x.(event)) }

func (e *events) Pop() any {
	old := *e
	last := old[len(old)-1]
	old[len(old)-1] = event{}
	*e = old[:len(old)-1]
	return last
}
