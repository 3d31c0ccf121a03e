package file

import (
	"math"
	"strconv"
	"strings"

	"github.com/gotower/gotower/profiles"
)

func faults(field *[]profiles.Fault) func(value) {
	return func(v value) {
		wrong := len(v.wrong)
		for _, item := range v.items() {
			if item.isNull() {
				item.failf("an empty fault: take it out")
				continue
			}
			*field = append(*field, item.fault())
		}
		v.checked(wrong, profiles.Route{Faults: *field})
	}
}

// fault wants to be told which share, and for how long: an all or an always
// that nobody wrote would be a bad surprise.
func (v value) fault() (f profiles.Fault) {
	wrong := len(v.wrong)
	v.read(fields{
		"share":  share(&f.Share),
		"delay":  duration(&f.Delay),
		"jitter": duration(&f.Jitter),
		"status": count(&f.Status, math.MaxInt16),
		"grpc": into(&f.GRPC, "a status of gRPC from 1 to 16, or its name, such as UNAVAILABLE", func(s string) (uint32, bool) {
			n, ok := parseGRPCStatus(s)
			return n, ok && n > 0
		}),
		"ttl": duration(&f.TTL),
	})
	v.require("share", "of which requests: 0.1, or 10%")
	v.require("ttl", "how long it lasts from when it is first seen: 10m")
	v.checked(wrong, profiles.Route{Faults: []profiles.Fault{f}}, "fault 0")
	return f
}

// share takes a number and a percentage.
func share(field *float64) func(value) {
	return into(field, "a share from 0 to 1, or from 0% to 100%", func(s string) (float64, bool) {
		digits, percent := strings.CutSuffix(s, "%")
		f, err := strconv.ParseFloat(digits, 64)
		if percent {
			f /= 100
		}
		return f, err == nil && f >= 0 && f <= 1
	})
}
