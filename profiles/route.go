package profiles

import "github.com/gotower/gotower/layer"

// compiledRoute is what requests need of a Route.
type compiledRoute struct {
	match   matcher
	needs   needs
	info    *layer.Route // nil if there is nothing to say
	classes classifier
}

// compileRoute returns an error if the route, number i, is to be left out, and
// tells drop what is left out of it otherwise.
func compileRoute(i int, r Route, drop func(error)) (compiledRoute, error) {
	inRoute := func(err error) { drop(routeError(i, r, err)) }
	match, err := compileMatch(r.Match, inRoute)
	if err != nil {
		return compiledRoute{}, routeError(i, r, err)
	}
	c := compiledRoute{match: match, needs: match.needs(), classes: compileClasses(r.Classes, inRoute)}
	if r.Name != "" || len(r.Labels) > 0 {
		c.info = &layer.Route{Name: r.Name, Labels: r.Labels}
	}
	return c, nil
}
