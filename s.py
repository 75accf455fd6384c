exec(open("/tmp/spills.py").read())
from cupy_impl.rmsnorm import plan, plan_backward, VARIANTS
import sys
which=sys.argv[1]; dts=sys.argv[2].split(","); cols_=[int(c) for c in sys.argv[3].split(",")]
for dt in dts:
  for cols in cols_:
    x=info((4096,cols),dt)
    if which=="f":
        for res in (None,x):
            for wd in {dt,"float32"}:
                w=info((cols,),wd)
                outs=[x]+([x] if res else [])+[info((4096,),"float32")]
                report((dt,cols,"res" if res else "",wd), plan(x,w,*outs,eps=1e-6,residual=res,return_rstd=True,variant=VARIANTS["rmsnorm"][int(sys.argv[4])-1]))
    else:
        for wd in sorted({dt,"float32"}):
            w=info((cols,),wd)
            report((dt,cols,wd), plan_backward(x,x,w,info((4096,),"float32"),x,w,variant=VARIANTS["rmsnorm_backward"][int(sys.argv[4])-1]))
