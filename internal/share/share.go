// Package share lets several streams share one source.
package share

import "sync"

// Group has one source, a shared value of type S, for each key that is in use. The zero Group is
// ready to use.
type Group[K comparable, S any] struct {
	mu      sync.Mutex
	sources map[K]*source[S]
}

type source[S any] struct {
	value S
	stop  func()
	users int
}

// Use returns the source of key, and the function leave, which the caller must call once when it no
// longer uses the source. If the source is not in use, Use calls the function start, which returns
// the source and the function that stops it. When the last user calls leave, the source is stopped.
func (g *Group[K, S]) Use(key K, start func() (S, func())) (value S, leave func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.sources[key]
	if s == nil {
		if g.sources == nil {
			g.sources = make(map[K]*source[S])
		}
		s = new(source[S])
		s.value, s.stop = start()
		g.sources[key] = s
	}
	s.users++
	return s.value, func() {
		g.mu.Lock()
		s.users--
		last := s.users == 0
		if last {
			delete(g.sources, key)
		}
		g.mu.Unlock()
		if last {
			s.stop()
		}
	}
}

// Len returns the number of sources that are in use.
func (g *Group[K, S]) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.sources)
}

// Latest has the latest value and the latest error of a source, for any number of readers.
// A change does not wait for the readers. The zero Latest has neither a value nor an error.
type Latest[T any] struct {
	mu      sync.Mutex
	changed chan struct{} // closed at the next change; nil if no reader waits
	value   T
	err     error    // nil if the source has a value after its last error
	now     Position // the numbers of values and errors so far
}

// Position has the numbers of values and errors that one reader has seen.
type Position struct{ values, errors int }

// Set stores a value, and removes the error that Fail stored before.
func (l *Latest[T]) Set(value T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.value, l.err = value, nil
	l.now.values++
	l.wake()
}

// Fail stores an error. It does not change the value.
func (l *Latest[T]) Fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
	l.now.errors++
	l.wake()
}

func (l *Latest[T]) wake() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// Changes has the latest value of a source, and the latest error if the error is new to the reader.
type Changes[T any] struct {
	Value T
	Fresh bool            // whether Value is new
	Err   error           // nil if the reader has seen it, or if a later Set removed it
	Next  <-chan struct{} // closed at the next change
}

// Look returns the changes that a reader has not seen yet. The argument seen is the
// position of the reader, which Look updates.
func (l *Latest[T]) Look(seen *Position) Changes[T] {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	c := Changes[T]{Value: l.value, Fresh: l.now.values > seen.values, Next: l.changed}
	if l.now.errors > seen.errors {
		c.Err = l.err
	}
	*seen = l.now
	return c
}
