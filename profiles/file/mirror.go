package file

import (
	"math"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/gotower/gotower/profiles"
)

func mirrors(field *[]profiles.Mirror) func(value) {
	return func(v value) {
		for _, item := range v.items() {
			if item.isNull() {
				item.failf("an empty mirror: take it out")
				continue
			}
			*field = append(*field, item.mirror())
		}
	}
}

// mirror leaves the port open if there is none: it is the target's.
func (v value) mirror() (m profiles.Mirror) {
	wrong := len(v.wrong)
	v.read(fields{
		"target": word(&m.Authority),
		"share": func(v value) {
			if share(&m.Share)(v); m.Share == 0 && len(v.wrong) == wrong {
				v.failf("want a share above 0; for no copies, take the mirror out")
			}
		},
		"body":     bodySize(&m.Body),
		"inFlight": count(&m.InFlight, math.MaxInt32),
	})
	v.require("target", "where the copies go: web-v2.default.svc.cluster.local:80")
	check := m
	check.Authority = withPort(m.Authority, defaultPort)
	v.checked(wrong, profiles.Route{Mirrors: []profiles.Mirror{check}}, "mirror")
	return m
}

// bodySize takes bytes and KiB. What is written as 0 is no body at all, which a
// Mirror has as -1.
func bodySize(field *int64) func(value) {
	return into(field, "a number of bytes such as 65536 or 64KiB, up to 16MiB", func(s string) (int64, bool) {
		unit := int64(1)
		if digits, ok := strings.CutSuffix(s, "KiB"); ok {
			s, unit = digits, 1<<10
		} else if digits, ok := strings.CutSuffix(s, "MiB"); ok {
			s, unit = digits, 1<<20
		}
		n, err := strconv.ParseUint(s, 10, 31)
		size := int64(n) * unit
		if size == 0 {
			size = -1
		}
		return size, err == nil && size <= 16<<20
	})
}

// mirrored returns routes whose mirrors without a port have this one. The
// routes are shared by all targets of the profile, and stay as they are.
func mirrored(routes []profiles.Route, port uint16) []profiles.Route {
	open := func(m profiles.Mirror) bool {
		_, _, err := net.SplitHostPort(m.Authority)
		return err != nil
	}
	cloned := false
	for i, r := range routes {
		if !slices.ContainsFunc(r.Mirrors, open) {
			continue
		}
		if !cloned {
			routes, cloned = slices.Clone(routes), true
		}
		routes[i].Mirrors = slices.Clone(r.Mirrors)
		for j, m := range r.Mirrors {
			routes[i].Mirrors[j].Authority = withPort(m.Authority, port)
		}
	}
	return routes
}
