package main

import (
	"go/ast"
	"go/types"
	"slices"

	"golang.org/x/tools/go/analysis"
)

var readyForward = &analysis.Analyzer{
	Name: "readyforward",
	Doc:  "report a Ready method that never asks the service it wraps",
	Run:  runReadyForward,
}

func runReadyForward(pass *analysis.Pass) (any, error) {
	a := newAsking(pass)
	for f := range productFuncs(pass) {
		method, _ := pass.TypesInfo.Defs[f.Name].(*types.Func)
		if method == nil || f.Recv == nil || f.Name.Name != "Ready" {
			continue
		}
		// A service that is made from several services may ask none of them, so only a wrapper of one is checked.
		recv := method.Signature().Recv().Type()
		a.visited = make(map[*ast.FuncDecl]bool)
		if inner := wrapped(recv); inner != nil && isService(recv) && !a.mayCall(f) {
			pass.Reportf(f.Name.Pos(), "Ready does not ask %s, which this service wraps: "+
				"call its Ready too, or leave the method out and embed it", inner.Name())
		}
	}
	return nil, nil
}

// wrapped returns the field that holds the wrapped service in the struct type t, or in the struct
// that t points to. It returns nil unless exactly one field is a service.
func wrapped(t types.Type) *types.Var {
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	s, ok := t.Underlying().(*types.Struct)
	if !ok {
		return nil
	}
	var found *types.Var
	for f := range s.Fields() {
		if isService(f.Type()) {
			if found != nil {
				return nil
			}
			found = f
		}
	}
	return found
}

// asking finds a package's methods that may call a service other than the receiver.
type asking struct {
	info    *types.Info
	methods map[*types.Func]*ast.FuncDecl // the package's methods
	visited map[*ast.FuncDecl]bool        // methods that mayCall has visited, which may be recursive
}

func newAsking(pass *analysis.Pass) *asking {
	a := &asking{info: pass.TypesInfo, methods: make(map[*types.Func]*ast.FuncDecl)}
	for f := range productFuncs(pass) {
		if method, ok := pass.TypesInfo.Defs[f.Name].(*types.Func); ok && f.Recv != nil {
			a.methods[method] = f
		}
	}
	return a
}

// mayCall reports whether the method f may call a service: its body has an expression whose type is a
// service, passes its receiver to a function, or calls a method that may. The receiver itself does not
// count as a service.
func (a *asking) mayCall(f *ast.FuncDecl) bool {
	if a.visited[f] {
		return false
	}
	a.visited[f] = true
	var recv types.Object
	// The receiver has no name if the method does not use it.
	if names := f.Recv.List[0].Names; len(names) > 0 {
		recv = a.info.Defs[names[0]]
	}
	found := false
	ast.Inspect(f.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			if a.isNil(n.X) || a.isNil(n.Y) {
				return false // a comparison with nil calls nothing
			}
		case *ast.CallExpr:
			found = found || slices.ContainsFunc(n.Args, func(e ast.Expr) bool { return a.is(recv, e) })
		case ast.Expr:
			// Mentioning a service is enough, for example to pass it to a function that may call it.
			found = found || a.mentions(recv, n)
		}
		return !found
	})
	return found
}

// mentions reports whether e is a service other than recv, or a method that may call one.
func (a *asking) mentions(recv types.Object, e ast.Expr) bool {
	if s, ok := e.(*ast.SelectorExpr); ok {
		if chosen := a.info.Selections[s]; chosen != nil && chosen.Kind() == types.MethodVal {
			method, _ := chosen.Obj().(*types.Func)
			// A generic method is declared once; Origin leads from an instance to the declaration.
			decl := a.methods[method.Origin()]
			return decl != nil && a.mayCall(decl)
		}
	}
	if a.is(recv, e) {
		return false
	}
	if star, ok := ast.Unparen(e).(*ast.StarExpr); ok && a.is(recv, star.X) {
		return false
	}
	t := a.info.TypeOf(e)
	return t != nil && isService(t)
}

// is reports whether e is the variable obj.
func (a *asking) is(obj types.Object, e ast.Expr) bool {
	id, ok := ast.Unparen(e).(*ast.Ident)
	return ok && obj != nil && a.info.Uses[id] == obj
}

func (a *asking) isNil(e ast.Expr) bool { return a.info.Types[e].IsNil() }
