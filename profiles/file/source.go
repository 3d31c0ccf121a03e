package file

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"reflect"
	"strings"

	"github.com/gotower/gotower/internal/follow"
	"github.com/gotower/gotower/internal/option"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/yamlfile"
	"github.com/gotower/gotower/profiles"
)

// Source provides the profiles of a file. It is safe for concurrent use, needs no Close, and must
// not be copied. A goroutine polls the file while at least one sequence of Watch is in use.
type Source struct {
	poller *follow.Poller[state]
}

// state has the latest result of reading the file, and the last valid content of the file.
type state = follow.Seen[*Set]

var _ profiles.Source = (*Source)(nil)

// New returns a Source of the file at path. A relative path is resolved at each poll. The
// file is not read before Watch is called. To reject an invalid file when a program starts,
// call [Parse] on its content first. An empty path panics.
func New(path string, opts ...Option) *Source {
	if path == "" {
		panic("file: New: the path is empty")
	}
	o := options{log: slog.New(slog.DiscardHandler)}
	option.Apply(&o, opts)
	// parse is Parse with a log of the warnings.
	parse := func(name string, data []byte) (*Set, error) {
		set, err := Parse(name, data)
		if err == nil {
			// Warnings are logged here, because Parse is called only when the file has changed.
			for _, w := range set.Warnings {
				_ = panics.Contain(func() { o.log.Warn("left out of a profile", "err", w) })
			}
		}
		return set, err
	}
	// follow.File reads the file again at each poll, and parses it if its content has changed.
	f := &follow.File[*Set]{Path: path, Max: follow.MaxSize, Parse: parse}
	return &Source{poller: follow.NewPoller(follow.Interval, f.Look)}
}

// Watch yields the profile of target, and again after each change, until ctx ends or the consumer
// breaks. A target that is not in the file has the default profile. If a change removes the profile
// of a target, the stream yields an error that lists the targets found, and the last profile stays
// active. To return to the default profile, write the target without any other field.
//
// If the file is unreadable or has mistakes, Watch yields an error with an [*Error] for each
// mistake. It yields the error again only after the error has changed. The last valid content of
// the file stays active. If the file was never valid, only the error is yielded. When the file is
// valid again, the profile is yielded, even if it is unchanged.
//
// A slow consumer receives only the latest profile. For a target that is neither a name nor an
// address, the only item is an error that matches [profiles.ErrNoProfile].
func (s *Source) Watch(ctx context.Context, target string) iter.Seq2[*profiles.Profile, error] {
	return func(yield func(*profiles.Profile, error) bool) {
		// A target that can never be in a file ends the sequence with an error.
		host, port, ok := splitTarget(target)
		if !ok && ctx.Err() == nil {
			yield(nil, fmt.Errorf("file: target %q: %w: neither a name nor an address", target, profiles.ErrNoProfile))
		}
		if !ok {
			return
		}
		v := view{target: target, host: host, port: port}
		// Each state of the file is one round. A state may hold both a profile and an error, so next is called until it
		// has nothing more.
		for range s.poller.States(ctx) {
			for ctx.Err() == nil {
				p, err := v.next(s.poller.Latest())
				if p == nil && err == nil {
					break
				}
				if !yield(p, err) {
					return
				}
			}
		}
	}
}

// view is the state of one sequence of Watch. It has the last profile and the last error that the
// sequence has yielded.
type view struct {
	target string
	host   string
	port   uint16

	seen    *state            // the last state that update has examined
	profile *profiles.Profile // the last profile yielded; nil before the first
	named   bool              // whether the file has ever had a profile of the target
	err     string            // the last error yielded; empty after the file became valid again
}

// next returns the next profile or error that the sequence must yield for the state st of
// the file. It returns nil and nil if nothing must be yielded. If both must be yielded, the
// profile comes first.
func (v *view) next(st *state) (*profiles.Profile, error) {
	// now is the profile in the last valid content, even if the file has mistakes since then.
	var now *profiles.Profile
	err := yamlfile.Located(st.Latest.Err)
	if st.Good != nil {
		set := st.Good.Value
		if now = set.profile(v.host, v.port); now == nil && v.named {
			err = errors.Join(err, v.removed(set.Targets()))
		}
	}
	// Each state is examined once. Later calls for the same state only look for an error to yield.
	if st != v.seen {
		v.seen = st
		if v.update(now, st.Good != nil, err == nil) {
			return v.profile, nil
		}
	}
	// The same error is not yielded twice.
	if err != nil && err.Error() == v.err {
		err = nil
	}
	if err != nil {
		v.err = err.Error()
	}
	return nil, err
}

// update stores the profile to yield in v.profile and returns true. It returns false if nothing
// must be yielded. An unchanged profile is yielded only if an error has ended. now is
// the profile in the file, or nil if the file has none for the target. read reports
// whether the file was ever valid. healthy is true if the target has no error.
func (v *view) update(now *profiles.Profile, read, healthy bool) bool {
	switch {
	case now != nil:
		v.named = true
	case !read || v.named:
		return false // the file may have the target, or it was removed
	// The file is valid and has no profile for this target, so the default profile applies.
	default:
		now = &profiles.Profile{}
	}
	// After an error, the profile is yielded again even if it is unchanged, to show that the error is over.
	recovered := v.err != "" && healthy
	if v.profile != nil && reflect.DeepEqual(now, v.profile) && !recovered {
		return false
	}
	v.profile = now
	if recovered {
		v.err = ""
	}
	return true
}

// removed returns the error for a target that a change removed from the file. found
// lists the targets that are in the file now.
func (v *view) removed(found []string) error {
	const most = 10
	list := strings.Join(found[:min(len(found), most)], ", ")
	if len(found) > most {
		list += fmt.Sprintf(" and %d more", len(found)-most)
	}
	list = cmp.Or(list, "none")
	return fmt.Errorf("file: the profile of target %q was removed; its last profile stays active; targets found: %s", v.target, list)
}
