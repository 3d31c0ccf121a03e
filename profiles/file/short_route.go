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

// check validates the field that was read from v, and adds a mistake if it is invalid.
// r is a route that has only this field, and prefix is the name of the field in errors
// of package profiles. check does nothing if there are more mistakes than wrongBefore,
// because then reading v has added one.
func (v value) check(wrongBefore int, r profiles.Route, prefix string) {
	if len(v.wrong) > wrongBefore {
		return
	}
	r.Match = profiles.All{}
	if err := (&profiles.Profile{Routes: []profiles.Route{r}}).Validate(); err != nil {
		first, _, _ := strings.Cut(err.Error(), "\n")
		v.failf("%s", strings.TrimPrefix(strings.TrimPrefix(first, "route 0: "), prefix+": "))
	}
}

// headerChanges reads a HeaderMutation. in returns a route that has only the
// HeaderMutation, for check.
func headerChanges(field *layer.HeaderMutation, header string, in func(layer.HeaderMutation) profiles.Route) func(value) {
	return func(v value) {
		wrong := len(v.wrong)
		v.read(fields{
			"add": func(v value) {
				v.each(func(key, item value) {
					for _, item := range item.oneOrMore() {
						field.Add = item.appendField(field.Add, key)
					}
				})
			},
			"set": func(v value) {
				v.each(func(key, item value) { field.Set = item.appendField(field.Set, key) })
			},
			"remove": func(v value) {
				for _, item := range v.oneOrMore() {
					if name, ok := item.text(); ok {
						field.Remove = append(field.Remove, name)
					}
				}
			},
		})
		if v.n.Kind == yaml.MappingNode && len(v.n.Content) == 0 {
			v.failf("no change: want one or more of add, remove, set")
		}
		v.check(wrong, in(*field), header)
	}
}

// appendField reads the value of the header field called name and appends the field.
func (v value) appendField(list []layer.HeaderField, name value) []layer.HeaderField {
	if text, ok := v.text(); ok {
		list = append(list, layer.HeaderField{Name: name.n.Value, Value: text})
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
		wrong := len(v.wrong)
		v.read(fields{
			"status":    count(&to.Status, math.MaxInt16),
			"scheme":    word(&to.Scheme),
			"host":      word(&to.Host),
			"port":      into(&to.Port, "a port from 1 to 65535", parsePort),
			"path":      word(&to.Path),
			"oldPrefix": word(&to.OldPrefix),
			"newPrefix": word(&to.NewPrefix),
		})
		if *to == (profiles.Redirect{}) && len(v.wrong) == wrong {
			v.failf("no location: want one or more of scheme, host, port, path, oldPrefix with newPrefix")
		}
		v.check(wrong, profiles.Route{Redirect: to}, "redirect")
		*field = to
	}
}

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
		v.check(wrong, profiles.Route{Faults: *field}, "")
	}
}

// fault reads a Fault. share and ttl are required, because a fault of all requests that
// never ends would be dangerous.
func (v value) fault() (f profiles.Fault) {
	wrong := len(v.wrong)
	v.read(fields{
		"share":  share(&f.Fraction),
		"delay":  duration(&f.Delay),
		"jitter": duration(&f.Jitter),
		"status": count(&f.Status, math.MaxInt16),
		"grpc": into(&f.GRPC, "a status of gRPC from 1 to 16, or its name, such as UNAVAILABLE", func(s string) (uint32, bool) {
			n, ok := parseGRPCStatus(s)
			return n, ok && n > 0
		}),
		"ttl": duration(&f.TTL),
	})
	v.require("share", "the share of the requests: 0.1, or 10%")
	v.require("ttl", "the life of the fault in each process: 10m")
	v.check(wrong, profiles.Route{Faults: []profiles.Fault{f}}, "fault 0")
	return f
}

// share reads a fraction such as 0.1, or a percentage such as 10%.
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
		for _, item := range v.items() {
			if item.isNull() {
				item.failf("an empty mirror: take it out")
				continue
			}
			*field = append(*field, item.mirror())
		}
	}
}

// mirror reads a Mirror. If the target has no port, [withMirrorPorts] adds it later.
func (v value) mirror() (m profiles.Mirror) {
	wrong := len(v.wrong)
	v.read(fields{
		"target": word(&m.Authority),
		"share": func(v value) {
			if share(&m.Fraction)(v); m.Fraction == 0 && len(v.wrong) == wrong {
				v.failf("want a share above 0; for no copies, take the mirror out")
			}
		},
		"body":     bodySize(&m.MaxBodyBytes),
		"inFlight": count(&m.MaxInFlight, math.MaxInt32),
	})
	v.require("target", "the target of the copies: web-v2.default.svc.cluster.local:80")
	check := m
	check.Authority = withPort(m.Authority, defaultPort)
	v.check(wrong, profiles.Route{Mirrors: []profiles.Mirror{check}}, "mirror")
	return m
}

// bodySize reads a number of bytes, KiB or MiB. 0 means no body, which is -1 in a Mirror.
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

// withMirrorPorts returns routes with port added to the targets of mirrors that have
// none. It does not change the argument, because several entries share the routes.
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
