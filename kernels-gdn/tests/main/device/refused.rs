//! What CUDA has no kernel for, and the words it is refused with.

use crate::place::{flushing, small};
use crate::stream::{Launch, Stream};
use crate::world::{Kind, World};
use kernels_core::{Activation, Arch, Cpu, Cuda, DeviceInfo, bf16, f16};
use kernels_gdn::{Fold, Grid, Prefill, Problem, Verify};
use kernels_testkit::{device::Device, rng::Rng};

pub fn what_has_no_kernel_is_refused(device: &Device) {
    other_types::<f16>(device);
    other_types::<f32>(device);

    let p = flushing(small::<Cuda>(), 2);
    let text = |p: Problem, info: &DeviceInfo, grid: Option<Grid>| {
        let refused = |result: Result<(), kernels_core::Error>| result.unwrap_err().to_string();
        let verify = refused(Verify::plan_with(p, info, grid).map(|_| ()));
        let prefill = refused(Prefill::plan_with(p, info, grid).map(|_| ()));
        let fold = refused(Fold::plan_with(p, info, grid).map(|_| ()));
        assert_eq!(verify.replace("verify", "prefill"), prefill);
        assert_eq!(verify.replace("verify", "fold"), fold);
        verify
    };
    assert_eq!(
        text(Problem { k_dim: 64, ..p }, &device.info, None),
        "gdn::verify: k_dim = 64 on CUDA (128 is) is not supported"
    );
    assert_eq!(
        text(Problem { v_dim: 256, ..p }, &device.info, None),
        "gdn::verify: v_dim = 256 on CUDA (128 is) is not supported"
    );
    let odd = Grid::Generic { tile: 48 };
    assert_eq!(text(p, &device.info, Some(odd)), "gdn::verify: tile is 48; it must be 16, 32 or 64");
    let old = DeviceInfo { arch: Some(Arch { major: 7, minor: 5 }), ..device.info.clone() };
    assert!(text(p, &old, None).starts_with("gdn::verify: device is sm_75, this build has "));
    let hopper = Some(Grid::Hopper);
    let other = DeviceInfo { arch: Some(Arch { major: 10, minor: 0 }), ..device.info.clone() };
    let newer = Verify::plan_with(p, &other, hopper).unwrap_err().to_string();
    assert!(newer.contains("the Hopper grid on sm_100") || newer.contains("this build has"), "{newer}");
    assert!(Prefill::plan_with(p, &device.info, hopper).is_err(), "prefill has generic kernels");
    assert!(Fold::plan_with(p, &device.info, hopper).is_err(), "fold has generic kernels");

    // An operation planned for the CPU does not run on the device.
    let mut world = World::<Cuda, bf16>::new(&device.queue, p);
    world.stage(&Launch::one(&p, 0, 0, Stream::random(&p, 2, &mut Rng::new(1))));
    let sized = world.sized();
    let verify = Verify::plan(sized, &DeviceInfo::cpu()).unwrap();
    let refused = world.with(|on, args| verify.run(on, args)).unwrap_err().to_string();
    assert_eq!(refused, "gdn::verify: device is the CPU; plan it for the CUDA device it runs on");
    let prefill = Prefill::plan(sized, &DeviceInfo::cpu()).unwrap();
    let refused = world.with(|on, args| prefill.run(on, args)).unwrap_err().to_string();
    assert_eq!(refused, "gdn::prefill: device is the CPU; plan it for the CUDA device it runs on");
    let fold = Fold::plan(p, &DeviceInfo::cpu()).unwrap();
    let refused = world.with_fold(&[0], |on, args| fold.run(on, args)).unwrap_err().to_string();
    assert_eq!(refused, "gdn::fold: device is the CPU; plan it for the CUDA device it runs on");
    // Between the slots there is room for heads that lie apart, but no kernel takes them.
    let verify = Verify::plan(sized, &device.info).unwrap();
    let apart = world.with(|on, mut args| {
        args.state.strides[1] += 2;
        verify.run(on, args).unwrap_err().to_string()
    });
    assert!(apart.starts_with("gdn::verify: `state` has strides ["), "{apart}");
    assert!(apart.ends_with("; heads of a slot must be packed on CUDA"), "{apart}");
    let fold = Fold::plan(p, &device.info).unwrap();
    let apart = world.with_fold(&[0], |on, mut args| {
        args.state.strides[1] += 2;
        fold.run(on, args).unwrap_err().to_string()
    });
    assert!(apart.ends_with("; heads of a slot must be packed on CUDA"), "{apart}");
    // The CPU runs anything of the right sizes, whatever it was planned for.
    let mut there = World::<Cpu, bf16>::new(&(), p);
    there.stage(&Launch::one(&p, 0, 0, Stream::random(&p, 2, &mut Rng::new(1))));
    there.with(|on, args| verify.run(on, args)).unwrap();
}

fn other_types<A: Activation>(device: &Device) {
    let p = flushing(small::<Cuda>(), 2);
    let mut world = World::<Cuda, A>::new(&device.queue, p);
    world.stage(&Launch::one(&p, 0, 0, Stream::random(&p, 2, &mut Rng::new(1))));
    for (kind, op) in [(Kind::Verify, "verify"), (Kind::Prefill, "prefill")] {
        let text = world.enqueue(kind).unwrap_err().to_string();
        assert_eq!(
            text,
            format!("gdn::{op}: activation type {} on CUDA (bf16 is) is not supported", A::DTYPE)
        );
    }
    let fold = Fold::plan(p, &device.info).unwrap();
    let text = world.with_fold(&[0], |on, args| fold.run(on, args)).unwrap_err().to_string();
    assert_eq!(text, format!("gdn::fold: activation type {} on CUDA (bf16 is) is not supported", A::DTYPE));
    assert!(world.collect().iter().all(|x| x.to_f32().is_nan()), "a refused launch wrote something");
}
