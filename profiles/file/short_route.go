package file

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

// checkRoute reports the first mistake in r at v. r is a route with only the field that was read from v.
// If the number of mistakes exceeds wrongBefore, reading the field has failed, and checkRoute does
// nothing.
func checkRoute(v value, wrongBefore int, r profiles.Route) {
	// Validate also requires a condition, so r gets one.
	r.Match = profiles.All{}
	// FieldErrors list all mistakes; the first is enough at this place.
	if wrong, ok := errors.AsType[*profiles.FieldError](r.Validate()); ok && len(v.Mistakes) == wrongBefore {
		v.Failf("%v", wrong.Err)
	}
}

// headerChanges returns a function that reads a HeaderMutation into field.
func headerChanges(field *layer.HeaderMutation) func(value) {
	return func(v value) {
		// If v.Mistakes grows from here on, one of the fields is invalid.
		wrong := len(v.Mistakes)
		v.Read(fields{
			"add": func(v value) {
				v.Each(func(key, item value) {
					// A field may be added several times, with several values.
					for _, item := range item.OneOrMore() {
						field.Add = appendField(item, field.Add, key)
					}
				})
			},
			"set": func(v value) {
				v.Each(func(key, item value) { field.Set = appendField(item, field.Set, key) })
			},
			"remove": func(v value) {
				for _, item := range v.OneOrMore() {
					if name, ok := item.Text(); ok {
						field.Remove = append(field.Remove, name)
					}
				}
			},
		})
		// An empty mapping is probably a mistake.
		if v.Node.Kind == yaml.MappingNode && len(v.Node.Content) == 0 {
			v.Failf("no change: want one or more of add, remove, set")
		}
		checkRoute(v, wrong, profiles.Route{RequestHeader: *field})
	}
}

// appendField appends the header field with the text in v to list, and returns it.
func appendField(v value, list []layer.HeaderField, name value) []layer.HeaderField {
	if text, ok := v.Text(); ok {
		list = append(list, layer.HeaderField{Name: name.Node.Value, Value: text})
	}
	return list
}

// redirect returns a function that reads a Redirect into *field.
func redirect(field **profiles.Redirect) func(value) {
	return func(v value) {
		to := &profiles.Redirect{}
		// If v.Mistakes grows from here on, one of the fields is invalid.
		wrong := len(v.Mistakes)
		v.Read(fields{
			"status":    count(&to.Status, math.MaxInt16),
			"scheme":    word(&to.Scheme),
			"host":      word(&to.Host),
			"port":      into(&to.Port, "a port from 1 to 65535", parsePort),
			"path":      word(&to.Path),
			"oldPrefix": word(&to.OldPrefix),
			"newPrefix": word(&to.NewPrefix),
		})
		if *to == (profiles.Redirect{}) && len(v.Mistakes) == wrong {
			v.Failf("no location: want one or more of scheme, host, port, path, oldPrefix with newPrefix")
		}
		checkRoute(v, wrong, profiles.Route{Redirect: to})
		*field = to
	}
}

// rewrite returns a function that reads a Rewrite into *field.
func rewrite(field **profiles.Rewrite) func(value) {
	return func(v value) {
		rewrite := &profiles.Rewrite{}
		wrong := len(v.Mistakes)
		v.Read(fields{
			"host":      word(&rewrite.Host),
			"path":      word(&rewrite.Path),
			"oldPrefix": word(&rewrite.OldPrefix),
			"newPrefix": word(&rewrite.NewPrefix),
		})
		checkRoute(v, wrong, profiles.Route{Rewrite: rewrite})
		*field = rewrite
	}
}

// respond returns a function that reads the response of a route into *field.
func respond(field **layer.DirectResponse) func(value) {
	return func(v value) {
		response := &layer.DirectResponse{}
		wrong := len(v.Mistakes)
		v.Read(fields{
			"status":  count(&response.Status, math.MaxInt16),
			"grpc":    failedGRPC(&response.GRPC),
			"message": anyText(&response.Message),
			"header": func(v value) {
				v.Each(func(name, item value) { response.Header = appendField(item, response.Header, name) })
			},
		})
		v.Require("status", "the status of the response: 503")
		checkRoute(v, wrong, profiles.Route{Respond: response})
		*field = response
	}
}

// faults returns a function that reads a list of faults into *field.
func faults(field *[]profiles.Fault) func(value) {
	return func(v value) {
		for _, item := range v.Members("an empty fault: take it out") {
			wrong := len(v.Mistakes)
			// The faults so far are checked together, because their fractions must not exceed 1.
			all := append(*field, readFault(item))
			if checkRoute(item, wrong, profiles.Route{Faults: all}); len(v.Mistakes) == wrong {
				*field = all
			}
		}
	}
}

// readFault reads a Fault. The field share is required, because a fault that affects all requests
// would be dangerous.
func readFault(v value) (f profiles.Fault) {
	v.Read(fields{
		"share":   share(&f.Fraction),
		"delay":   duration(&f.Delay),
		"jitter":  duration(&f.Jitter),
		"message": anyText(&f.Message),
		"status":  count(&f.Status, math.MaxInt16),
		"grpc":    failedGRPC(&f.GRPC),
		"ttl":     duration(&f.TTL),
	})
	v.Require("share", "the share of the requests: 0.1, or 10%")
	return f
}

// failedGRPC returns a function that reads a gRPC status other than OK into field.
func failedGRPC(field *uint32) func(value) {
	return into(field, "a status of gRPC from 1 to 16, or its name, such as UNAVAILABLE", func(s string) (uint32, bool) {
		n, ok := parseGRPCStatus(s)
		return n, ok && n > 0
	})
}

// share returns a function that reads a fraction such as 0.1, or a percentage such as 10%,
// into field.
func share(field *float64) func(value) {
	return into(field, "a share from 0 to 1, or from 0% to 100%", func(s string) (float64, bool) {
		// "20%" is the same as "0.2".
		digits, percent := strings.CutSuffix(s, "%")
		f, err := strconv.ParseFloat(digits, 64)
		if percent {
			f /= 100
		}
		return f, err == nil && f >= 0 && f <= 1
	})
}

// mirrors returns a function that reads a list of mirrors into *field.
func mirrors(field *[]profiles.Mirror) func(value) {
	return func(v value) {
		for _, item := range v.Members("an empty mirror: take it out") {
			*field = append(*field, readMirror(item))
		}
	}
}

func readMirror(v value) (m profiles.Mirror) {
	// How many mistakes there are before the Mirror, to find out whether reading it adds any.
	wrong := len(v.Mistakes)
	v.Read(fields{
		"target": word(&m.Authority),
		// The inner v is the value of the field. It reports to the same list of mistakes.
		"share": func(v value) {
			// A share of 0 would mean all requests in a Mirror. It is also 0 after a mistake in share itself.
			if share(&m.Fraction)(v); m.Fraction == 0 && len(v.Mistakes) == wrong {
				v.Failf("want a share above 0; for no copies, take the mirror out")
			}
		},
		"body":     bodySize(&m.MaxBodyBytes),
		"inFlight": count(&m.MaxInFlight, math.MaxInt32),
	})
	v.Require("target", "the target of the copies: web-v2.default.svc.cluster.local:80")
	checkRoute(v, wrong, profiles.Route{Mirrors: []profiles.Mirror{m}})
	return m
}

// bodySize returns a function that reads a number of bytes, such as 65536 or 64KiB, into field. It
// stores -1 for the number 0, because a MaxBodyBytes of 0 in a Mirror means the default.
func bodySize(field *int64) func(value) {
	return into(field, "a number of bytes such as 65536 or 64KiB, up to 16MiB", func(s string) (int64, bool) {
		unit := int64(1)
		if digits, ok := strings.CutSuffix(s, "KiB"); ok {
			s, unit = digits, 1<<10
		} else if digits, ok := strings.CutSuffix(s, "MiB"); ok {
			s, unit = digits, 1<<20
		}
		// 31 bits keep the product with the unit below the limit of an int64.
		n, err := strconv.ParseUint(s, 10, 31)
		size := int64(n) * unit
		if size == 0 {
			size = -1
		}
		return size, err == nil && size <= 16<<20
	})
}

// withMirrorPorts returns routes in which the mirror targets have a port, as withPort adds it. If it must
// change a route, it returns a copy, because other entries use the same routes.
func withMirrorPorts(routes []profiles.Route, port uint16) []profiles.Route {
	// open reports whether the target of m has no port.
	open := func(m profiles.Mirror) bool { return withPort(m.Authority, port) != m.Authority }
	cloned := false // routes is a copy, which may be changed
	for i, r := range routes {
		if !slices.ContainsFunc(r.Mirrors, open) {
			continue
		}
		// The slice is copied once, and the Mirrors of each route that changes.
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
