package file

import (
	"math"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

// checkRoute says why a Router would leave a piece of a route out that
// requests have passed the match of, or "". The route has nothing else.
func checkRoute(r profiles.Route) string {
	r.Match = profiles.All{}
	why := reason((&profiles.Profile{Routes: []profiles.Route{r}}).Validate())
	return strings.TrimPrefix(why, "route 0: ")
}

// checked notes what is wrong with a piece of a route, unless something is that
// was noted already. What package profiles begins with to say which piece it is,
// the place of v says.
func (v value) checked(wrongBefore int, r profiles.Route, piece ...string) {
	if len(v.wrong) > wrongBefore {
		return
	}
	why := checkRoute(r)
	for _, p := range piece {
		why = strings.TrimPrefix(why, p+": ")
	}
	if why != "" {
		v.failf("%s", why)
	}
}

// fieldChanges reads changes of a header. in makes a route of them, to check
// each by itself.
func fieldChanges(field *layer.FieldChanges, header string, in func(layer.FieldChanges) profiles.Route) func(value) {
	return func(v value) {
		v.read(fields{
			"add": func(v value) {
				v.each(func(key, item value) {
					for _, item := range item.oneOrMore() {
						if p := item.pair(key); p != nil {
							item.checked(len(v.wrong), in(layer.FieldChanges{Add: p}), header, "add "+strconv.Quote(key.n.Value))
							field.Add = append(field.Add, p...)
						}
					}
				})
			},
			"set": func(v value) {
				v.each(func(key, item value) {
					if p := item.pair(key); p != nil {
						item.checked(len(v.wrong), in(layer.FieldChanges{Set: p}), header, "set "+strconv.Quote(key.n.Value))
						field.Set = append(field.Set, p...)
					}
				})
			},
			"remove": func(v value) {
				for _, item := range v.oneOrMore() {
					if name, ok := item.text(); ok {
						item.checked(len(v.wrong), in(layer.FieldChanges{Remove: []string{name}}), header, "remove "+strconv.Quote(name))
						field.Remove = append(field.Remove, name)
					}
				}
			},
		})
		if v.n.Kind == yaml.MappingNode && len(v.n.Content) == 0 {
			v.failf("no change: want one or more of add, remove, set")
		}
	}
}

// pair reads the value of a field of a header; it is one, or nil with a mistake
// noted.
func (v value) pair(name value) []layer.FieldPair {
	if text, ok := v.text(); ok {
		return []layer.FieldPair{{Name: name.n.Value, Value: text}}
	}
	return nil
}

func requestHeader(field *layer.FieldChanges) func(value) {
	return fieldChanges(field, "request header", func(c layer.FieldChanges) profiles.Route {
		return profiles.Route{RequestHeader: c}
	})
}

func responseHeader(field *layer.FieldChanges) func(value) {
	return fieldChanges(field, "response header", func(c layer.FieldChanges) profiles.Route {
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
			v.failf("to nowhere else: want one or more of scheme, host, port, path, oldPrefix with newPrefix")
		}
		v.checked(wrong, profiles.Route{Redirect: to}, "redirect")
		*field = to
	}
}
