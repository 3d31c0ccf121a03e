package k8s

import "sync"

// board is what is known of a Service, for any number of streams, none of which
// it waits for.
type board struct {
	mu       sync.Mutex
	changed  chan struct{} // closed when what is below is not the latest any more
	now      snapshot
	listed   [kinds]bool
	failing  [kinds]error
	answers  int // how many snapshots there were
	returns  int // how often all was well again
	failures [kinds]int
}

// kind is what a Reflector reads.
type kind int

const (
	services kind = iota
	endpointSlices
	kinds
)

func newBoard() *board { return &board{changed: make(chan struct{})} }

// tell changes the snapshot by what was read of a kind.
func (b *board) tell(k kind, change func(s *snapshot)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(&b.now)
	b.listed[k] = true
	b.answers++
	b.wake()
}

func (b *board) fail(k kind, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failing[k] = err
	b.failures[k]++
	b.wake()
}

// works says that what is known of a kind is watched.
func (b *board) works(k kind) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failing[k] == nil {
		return
	}
	b.failing[k] = nil
	if b.failing == [kinds]error{} {
		b.returns++
		b.wake()
	}
}

// wake is called with mu held.
func (b *board) wake() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// position is how far a stream is.
type position struct {
	answers, returns int
	failures         [kinds]int
}

// news is what a stream has not seen yet.
type news struct {
	snapshot *snapshot // nil if it is no other, or not whole yet
	back     bool      // all is well again
	errs     []error
	changed  <-chan struct{}
}

// look returns what is new since at, all of one moment, and moves at on. A
// stream is not told of a failure that is over.
func (b *board) look(at *position) news {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := news{changed: b.changed, back: b.returns > at.returns}
	// Where there is no Service, it does not matter which slices there are.
	whole := b.listed[services] && (b.now.service == nil || b.listed[endpointSlices])
	if whole && (b.answers > at.answers || n.back) {
		s := b.now
		n.snapshot = &s
	}
	for k, err := range b.failing {
		if err != nil && b.failures[k] > at.failures[k] {
			n.errs = append(n.errs, err)
		}
	}
	*at = position{b.answers, b.returns, b.failures}
	return n
}
