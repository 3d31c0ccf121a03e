package tap

import (
	"errors"
	"fmt"
	"math"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/gotower/gotower/tap/tappb"
)

// terms are what a watcher asks for.
type terms struct {
	match    *condition
	limit    uint64        // requests; unlimited is none
	sample   float64       // share of the requests; 0 is all
	outcome  *outcome      // of the requests that are shown; nil is any
	duration time.Duration // 0 is no end
	fields   bool          // header and trailer fields
	explain  bool
	body     int    // so many bytes of each body
	maxRPS   uint32 // 0 is no bound

	connections bool // are shown beside requests
}

const unlimited = math.MaxUint64

// terms checks what req asks for. Its errors are refusals.
func (r *Registry) terms(req *tappb.WatchRequest) (terms, error) {
	t := terms{
		limit: req.GetLimit(), sample: req.GetSample(),
		fields: req.GetFields(), explain: req.GetExplain(), maxRPS: req.GetMaxRps(), connections: true,
	}
	if t.limit == 0 {
		t.limit = unlimited
	}
	if err := sane(req); err != nil {
		return terms{}, refuse(codes.InvalidArgument, err)
	}
	t.duration = req.GetDuration().AsDuration()
	if n := req.GetBodyBytes(); n > 0 {
		if r.redact == nil {
			return terms{}, refuse(codes.PermissionDenied, errors.New("body_bytes: this process shows no bodies, see tap.WithBodies"))
		}
		t.body = min(int(n), r.maxBody)
	}
	var err error
	if t.outcome, err = outcomeOf(req.GetResponse()); err != nil {
		return terms{}, refuse(codes.InvalidArgument, err)
	}
	t.match, err = r.filter(req.GetMatch(), req.GetHeaders())
	return t, err
}

// sane checks the numbers of req, which are not for one process to judge.
func sane(req *tappb.WatchRequest) error {
	if s := req.GetSample(); math.IsNaN(s) || s < 0 || s > 1 {
		return fmt.Errorf("sample: %v is not from 0 to 1", s)
	}
	if d := req.GetDuration(); d != nil && (!d.IsValid() || d.AsDuration() <= 0) {
		return errors.New("duration: must be more than nothing")
	}
	return nil
}
