package main

import (
	"go/ast"
	"go/types"

	"golang.org/x/tools/go/analysis"
)

var readyForward = &analysis.Analyzer{
	Name: "readyforward",
	Doc:  "report a Ready method that never asks the service it wraps",
	Run:  runReadyForward,
}

func runReadyForward(pass *analysis.Pass) (any, error) {
	for f := range productFuncs(pass) {
		method, _ := pass.TypesInfo.Defs[f.Name].(*types.Func)
		if method == nil || f.Recv == nil || f.Name.Name != "Ready" {
			continue
		}
		recv := method.Signature().Recv().Type()
		if inner := wrapped(recv); inner != nil && isService(recv) && !asks(pass.TypesInfo, f) {
			pass.Reportf(f.Name.Pos(), "Ready does not ask %s, which this service wraps: "+
				"call its Ready too, or leave the method out and embed it", inner.Name())
		}
	}
	return nil, nil
}

// wrapped returns the one field of a struct that is a service, or nil: of
// several, none stands for the whole.
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

// asks reports whether the method may ask another service: it mentions one, or
// calls a method of its own that may.
func asks(info *types.Info, f *ast.FuncDecl) bool {
	var recv types.Object
	if names := f.Recv.List[0].Names; len(names) > 0 {
		recv = info.Defs[names[0]]
	}
	found := false
	ast.Inspect(f.Body, func(n ast.Node) bool {
		e, ok := n.(ast.Expr)
		if !ok || found {
			return !found
		}
		if id, ok := e.(*ast.Ident); ok && info.Uses[id] == recv {
			return true // the receiver alone says nothing
		}
		if s, ok := e.(*ast.SelectorExpr); ok && info.Selections[s] != nil && info.Selections[s].Kind() == types.MethodVal {
			if id, ok := s.X.(*ast.Ident); ok && info.Uses[id] == recv {
				found = true
			}
		}
		if t := info.TypeOf(e); t != nil && isService(t) {
			found = true
		}
		return !found
	})
	return found
}
