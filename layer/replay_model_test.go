package layer_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"

	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
)

// A schedule is a list of pairs: what is done, and to which reader or how much.
// TestReplayKeepsItsModel draws them, FuzzReplay takes them from its input.
func TestReplayKeepsItsModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		schedule := rapid.SliceOfN(rapid.Byte(), 0, 120).Draw(rt, "schedule")
		size, limit := rapid.IntRange(0, 60).Draw(rt, "size"), rapid.IntRange(-1, 80).Draw(rt, "limit")
		if problem := driveReplay(schedule, size, limit, rapid.Bool().Draw(rt, "breaks")); problem != "" {
			rt.Fatal(problem)
		}
	})
}

func FuzzReplay(f *testing.F) {
	f.Add([]byte{0, 0, 1, 0x30, 0, 0, 1, 0x21, 3, 0, 1, 0x31, 2, 1, 4, 0}, uint8(20), int8(10), false)
	f.Add([]byte{0, 0, 0, 0, 1, 0xf0, 1, 0x41, 4, 0, 2, 0, 2, 1}, uint8(30), int8(12), true)
	f.Fuzz(func(t *testing.T, schedule []byte, size uint8, limit int8, breaks bool) {
		if problem := driveReplay(schedule, int(size), int(limit), breaks); problem != "" {
			t.Error(problem)
		}
	})
}

var errSourceBroke = errors.New("the source broke")

type replayModel struct {
	body    *layer.BodyReplay
	source  *replaySource
	data    []byte
	limit   int
	breaks  bool
	readers []*modelReader

	pos           int // how much of the source was read
	broke         bool
	ended, closed bool
}

type modelReader struct {
	io.ReadCloser
	pos    int
	open   bool // as the model sees it
	failed bool
}

func driveReplay(schedule []byte, size, limit int, breaks bool) string {
	m := &replayModel{limit: max(limit, 0), breaks: breaks}
	for i := range size {
		m.data = append(m.data, byte(i))
	}
	var data io.Reader = bytes.NewReader(m.data)
	if breaks {
		data = io.MultiReader(data, errReader{errSourceBroke})
	}
	m.source = &replaySource{data: data}
	m.body = layer.ReplayBody(m.source, int64(limit))
	for i := 0; i+1 < len(schedule); i += 2 {
		if problem := m.step(schedule[i]%7, schedule[i+1]); problem != "" {
			return fmt.Sprintf("step %d: %s", i/2, problem)
		}
		if problem := m.closedRight(); problem != "" {
			return fmt.Sprintf("after step %d: %s", i/2, problem)
		}
	}
	return ""
}

func (m *replayModel) step(what, arg byte) string {
	switch what {
	case 0:
		return m.next()
	case 1, 2:
		return m.read(int(arg&0xf), int(arg>>4))
	case 3:
		if r := m.reader(int(arg)); r != nil {
			r.Close()
			r.open = false
		}
	case 4:
		m.body.Retire()
		for i, r := range m.readers {
			if i < len(m.readers)-1 || !r.open {
				m.retire(r, i)
			}
		}
	case 5:
		m.body.End()
		m.ended = true
	case 6:
		if arg > 250 {
			m.body.Close()
			m.ended, m.closed = true, true
			for _, r := range m.readers {
				r.open = false
			}
		}
	}
	return ""
}

// retire closes all that are open but the newest of them.
func (m *replayModel) retire(r *modelReader, i int) {
	for _, later := range m.readers[i+1:] {
		if later.open {
			r.open = false
		}
	}
}

func (m *replayModel) reader(i int) *modelReader {
	if len(m.readers) == 0 {
		return nil
	}
	return m.readers[i%len(m.readers)]
}

func (m *replayModel) next() string {
	body, ok := m.body.Next()
	if may := !m.ended && !m.broke && m.pos <= m.limit; ok != may {
		return fmt.Sprintf("Next is %v after %d bytes of %d, ended %v, broken %v", ok, m.pos, m.limit, m.ended, m.broke)
	}
	if ok {
		m.readers = append(m.readers, &modelReader{ReadCloser: body, open: true})
	}
	return ""
}

func (m *replayModel) read(i, n int) string {
	r := m.reader(i)
	if r == nil || n == 0 {
		return ""
	}
	buf := make([]byte, n)
	before := m.source.reads.Load()
	got, err := r.Read(buf)
	fetched := m.source.reads.Load() > before
	switch {
	case !r.open || r.failed:
		if err == nil || fetched {
			return fmt.Sprintf("a reader that was given up reads %d bytes", got)
		}
		return ""
	case fetched && r.pos != m.pos:
		return fmt.Sprintf("at %d, with %d bytes read before, the source is asked", r.pos, m.pos)
	case !bytes.Equal(buf[:got], m.data[r.pos:r.pos+got]):
		return fmt.Sprintf("at %d it reads %v", r.pos, buf[:got])
	}
	r.pos += got
	if fetched {
		m.advance(r)
	}
	return m.endsRight(r, err)
}

// advance notes what r got from the source: those who are behind when the
// limit is passed are left behind.
func (m *replayModel) advance(r *modelReader) {
	m.pos = r.pos
	if m.pos <= m.limit {
		return
	}
	for _, other := range m.readers {
		if other.open && other.pos < m.pos {
			other.failed = true
		}
	}
}

func (m *replayModel) endsRight(r *modelReader, err error) string {
	switch {
	case err == nil:
		return ""
	case r.pos < len(m.data):
		return fmt.Sprintf("at %d of %d it fails: %v", r.pos, len(m.data), err)
	case m.breaks:
		m.broke = true
		if err != errSourceBroke {
			return fmt.Sprintf("the source broke, it says %v", err)
		}
	case err != io.EOF:
		return fmt.Sprintf("at the end it fails: %v", err)
	}
	return ""
}

// closedRight compares how often the source was closed with how often it
// should have been.
func (m *replayModel) closedRight() string {
	over := m.ended && len(m.readers) > 0
	for _, r := range m.readers {
		over = over && !r.open
	}
	m.closed = m.closed || over
	want := int64(0)
	if m.closed {
		want = 1
	}
	if got := m.source.closes.Load(); got != want {
		return fmt.Sprintf("the source was closed %d times, want %d", got, want)
	}
	return ""
}
