package main

import (
	"go/ast"
	"go/token"

	"golang.org/x/tools/go/analysis"
)

var errCompare = &analysis.Analyzer{
	Name: "errcompare",
	Doc:  "report == and != with the errors of package layer",
	Run:  runErrCompare,
}

func runErrCompare(pass *analysis.Pass) (any, error) {
	for _, file := range pass.Files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				return n.Recv == nil || n.Name.Name != "Is" // an Is method compares identity
			case *ast.BinaryExpr:
				if n.Op == token.EQL || n.Op == token.NEQ {
					checkCompared(pass, n.X, n.Y)
					checkCompared(pass, n.Y, n.X)
				}
			case *ast.SwitchStmt:
				if n.Tag == nil {
					return true
				}
				for _, clause := range n.Body.List {
					for _, e := range clause.(*ast.CaseClause).List {
						checkCompared(pass, n.Tag, e)
					}
				}
			}
			return true
		})
	}
	return nil, nil
}

// checkCompared checks a comparison of err with the expression other, by an operator or in a switch
// statement. It reports a mistake if other is an error of package layer, because such an error may
// be wrapped. The exception is a field Kind, see isKind.
func checkCompared(pass *analysis.Pass, err, other ast.Expr) {
	other = ast.Unparen(other)
	id, ok := other.(*ast.Ident)
	if s, isSelector := other.(*ast.SelectorExpr); isSelector {
		id, ok = s.Sel, true
	}
	if ok && isLayerError(pass.TypesInfo.Uses[id]) && !isKind(pass, err, id.Name) {
		pass.Reportf(other.Pos(), "layer.%s comes wrapped: use errors.Is", id.Name)
	}
}

// isKind reports whether err is a field Kind that may be compared by == with the layer error of the
// given name. The Kind of a layer.Error may be compared with all names except ErrNotReady and
// ErrTimeout, because it may wrap these errors. A field Kind of another type may be compared with
// all names.
func isKind(pass *analysis.Pass, err ast.Expr, name string) bool {
	s, ok := ast.Unparen(err).(*ast.SelectorExpr)
	if !ok || s.Sel.Name != "Kind" {
		return false
	}
	return !isLayers(pass.TypesInfo.Uses[s.Sel]) || name != "ErrNotReady" && name != "ErrTimeout"
}
