package file

import (
	"math"
	"net"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

// checkRoute validates a field that was read from v, and reports a mistake at v if it is invalid.
// r is a route with only this field. The argument prefix, the name of the field in errors of
// package profiles, is removed from the text. If the number of mistakes exceeds wrongBefore,
// reading the field has failed, and checkRoute does nothing.
func checkRoute(v value, wrongBefore int, r profiles.Route, prefix string) {
	if len(v.Mistakes) > wrongBefore {
		return
	}
	r.Match = profiles.All{}
	if err := (&profiles.Profile{Routes: []profiles.Route{r}}).Validate(); err != nil {
		first, _, _ := strings.Cut(err.Error(), "\n")
		v.Failf("%s", strings.TrimPrefix(strings.TrimPrefix(first, "route 0: "), prefix+": "))
	}
}

// headerChanges returns a function that reads a HeaderMutation into field and validates it. To
// validate it, the returned function calls checkRoute with the route that the function in returns
// for the HeaderMutation. The argument header is the name of the field in errors.
func headerChanges(field *layer.HeaderMutation, header string, in func(layer.HeaderMutation) profiles.Route) func(value) {
	return func(v value) {
		wrong := len(v.Mistakes)
		v.Read(fields{
			"add": func(v value) {
				v.Each(func(key, item value) {
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
		if v.Node.Kind == yaml.MappingNode && len(v.Node.Content) == 0 {
			v.Failf("no change: want one or more of add, remove, set")
		}
		checkRoute(v, wrong, in(*field), header)
	}
}

func appendField(v value, list []layer.HeaderField, name value) []layer.HeaderField {
	if text, ok := v.Text(); ok {
		list = append(list, layer.HeaderField{Name: name.Node.Value, Value: text})
	}
	return list
}

func requestHeader(field *layer.HeaderMutation) func(value) {
	return headerChanges(field, "request header", func(c layer.HeaderMutation) profiles.Route {
		return profiles.Route{RequestHeader: c}
	})
}

func responseHeader(field *layer.HeaderMutation) func(value) {
	return headerChanges(field, "response header", func(c layer.HeaderMutation) profiles.Route {
		return profiles.Route{ResponseHeader: c}
	})
}

func redirect(field **profiles.Redirect) func(value) {
	return func(v value) {
		to := &profiles.Redirect{}
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
		checkRoute(v, wrong, profiles.Route{Redirect: to}, "redirect")
		*field = to
	}
}

func faults(field *[]profiles.Fault) func(value) {
	return func(v value) {
		wrong := len(v.Mistakes)
		for _, item := range v.Members("an empty fault: take it out") {
			*field = append(*field, readFault(item))
		}
		checkRoute(v, wrong, profiles.Route{Faults: *field}, "")
	}
}

// readFault reads a Fault. The fields share and ttl are required, because a fault that
// affects all requests and never ends would be dangerous.
func readFault(v value) (f profiles.Fault) {
	wrong := len(v.Mistakes)
	v.Read(fields{
		"share":   share(&f.Fraction),
		"delay":   duration(&f.Delay),
		"jitter":  duration(&f.Jitter),
		"message": anyText(&f.Message),
		"status":  count(&f.Status, math.MaxInt16),
		"grpc": into(&f.GRPC, "a status of gRPC from 1 to 16, or its name, such as UNAVAILABLE", func(s string) (uint32, bool) {
			n, ok := parseGRPCStatus(s)
			return n, ok && n > 0
		}),
		"ttl": duration(&f.TTL),
	})
	v.Require("share", "the share of the requests: 0.1, or 10%")
	v.Require("ttl", "the life of the fault in each process: 10m")
	checkRoute(v, wrong, profiles.Route{Faults: []profiles.Fault{f}}, "fault 0")
	return f
}

// share returns a function that reads a fraction such as 0.1, or a percentage such as 10%,
// into field.
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

func mirrors(field *[]profiles.Mirror) func(value) {
	return func(v value) {
		for _, item := range v.Members("an empty mirror: take it out") {
			*field = append(*field, readMirror(item))
		}
	}
}

func readMirror(v value) (m profiles.Mirror) {
	wrong := len(v.Mistakes)
	v.Read(fields{
		"target": word(&m.Authority),
		"share": func(v value) {
			if share(&m.Fraction)(v); m.Fraction == 0 && len(v.Mistakes) == wrong {
				v.Failf("want a share above 0; for no copies, take the mirror out")
			}
		},
		"body":     bodySize(&m.MaxBodyBytes),
		"inFlight": count(&m.MaxInFlight, math.MaxInt32),
	})
	v.Require("target", "the target of the copies: web-v2.default.svc.cluster.local:80")
	check := m
	check.Authority = withPort(m.Authority, defaultPort)
	checkRoute(v, wrong, profiles.Route{Mirrors: []profiles.Mirror{check}}, "mirror")
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
		n, err := strconv.ParseUint(s, 10, 31)
		size := int64(n) * unit
		if size == 0 {
			size = -1
		}
		return size, err == nil && size <= 16<<20
	})
}

// withMirrorPorts returns routes in which each mirror target has a port. It adds the
// argument port to a target without a port. If it must change a route, it returns a copy,
// because other entries use the same routes.
func withMirrorPorts(routes []profiles.Route, port uint16) []profiles.Route {
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
