package layer

// replayReader is the body of one try. Its fields are guarded by the mutex of
// its body.
type replayReader struct {
	body *BodyReplay
	pos  int64
	err  error // it fails with this, whatever is there
	shut bool  // Close was called
}

func (r *replayReader) Read(p []byte) (int, error) {
	b := r.body
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		switch {
		case r.err != nil:
			return 0, r.err
		case len(p) == 0:
			return 0, nil
		case r.pos < b.pos:
			n := copy(p, b.kept[r.pos:])
			r.pos += int64(n)
			b.forget()
			return n, nil
		case b.err != nil:
			return 0, b.err
		case b.fetches == nil:
			return r.fetch(p)
		}
		b.moved.Wait()
	}
}

// fetch reads from the source, without the mutex.
func (r *replayReader) fetch(p []byte) (n int, err error) {
	b := r.body
	b.fetches = r
	b.mu.Unlock()
	err = errReplayBroken // unless the source returns
	defer func() {
		b.mu.Lock()
		b.fetches = nil
		b.take(r, p[:n], err)
		b.moved.Broadcast()
		if n > 0 {
			err = nil // it comes with the next Read
		}
	}()
	return b.source.Read(p)
}

func (r *replayReader) Close() error {
	b := r.body
	b.mu.Lock()
	if r.shut {
		b.mu.Unlock()
		return nil
	}
	r.shut = true
	b.drop(r, errReplayClosed)
	b.forget()
	over := b.over()
	b.mu.Unlock()
	if over {
		return b.source.Close()
	}
	return nil
}
